"""What of the machine is lent, and what stages lease of it."""

from __future__ import annotations

from autotune import lending
from autotune.config import Config, Device, Machine
from autotune.machine import usable_cpus

SIMULATED = {"gpu0": Device(), "big": Device()}


def test_simulated_devices_stand_beside_the_real_ones() -> None:
    found = lending.machine(Config(devices=SIMULATED))
    assert found.cpus == usable_cpus()
    assert found.kinds["simulated"] == ("simulated:gpu0", "simulated:big")
    assert "cpu" in found.kinds


def test_simulated_cpus_lend_nothing_real() -> None:
    config = Config(machine=Machine(simulated_cpus=32), devices=SIMULATED)
    assert lending.machine(config).cpus == tuple(range(32))
    assert set(lending.machine(config).kinds) == {"simulated"}
    assert lending.lease_names(config, (0, 3), "simulated:gpu0") == ["simcpu-0", "simcpu-3", "simulated:gpu0"]


def test_real_cpus_are_leased_by_their_number_and_cpu_is_no_device_of_its_own() -> None:
    assert lending.lease_names(Config(), (1,), "") == ["cpu-1"]
    assert lending.lease_names(Config(), (0, 1), "cpu") == ["cpu-0", "cpu-1"]
    assert lending.lease_names(Config(), (1,), "cuda:0") == ["cpu-1", "cuda:0"]
