"""A job for CPUs is at home on CPUs of the same model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.devices import Cpu, cpu, device
from autotune.errors import MachineProblem

CPU = Cpu({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})


@pytest.fixture
def moved_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The key of a job that was submitted before the machine had another CPU."""
    key = CPU.log_kind().key
    for module in (device, cpu):
        monkeypatch.setattr(module, "cpu_model", lambda: "Another CPU 6/143/8")
    yield key


def test_a_job_of_another_cpu_is_refused_and_both_are_named(moved_key: str) -> None:
    with pytest.raises(MachineProblem, match=r"on another machine \(Old CPU; this is Another CPU 6/143/8\)"):
        CPU.check_here(moved_key, "Old CPU")


def test_a_job_without_the_name_of_its_machine_is_refused(moved_key: str) -> None:
    with pytest.raises(MachineProblem, match=r"on another machine, or with another TVM, .* autotune retry JOB --here"):
        CPU.check_here(moved_key)


def test_a_key_of_a_simulated_device_is_none_of_a_cpu() -> None:
    with pytest.raises(MachineProblem):
        CPU.check_here("simulated-0123456789")


def test_a_key_without_a_digest_is_not_checked() -> None:
    assert CPU.is_here("llvm-test")
