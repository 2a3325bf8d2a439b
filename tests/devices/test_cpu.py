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


class TestWhereTheConstantsOfAModelAre:
    @pytest.fixture(autouse=True)
    def caches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two CPUs with 1 MiB of L2 each and 32 MiB of L3."""
        sizes = {2: 2 * 2**20, 3: 32 * 2**20}
        monkeypatch.setattr(cpu, "cache_bytes", lambda level, cpus: sizes[level])

    @pytest.mark.parametrize(("mib", "held"), [(1, "L2"), (2, "L3"), (16, "L3"), (17, "memory"), (500, "memory")])
    def test_is_the_nearest_memory_that_has_room_for_all_of_them(self, mib: int, held: str) -> None:
        kind = CPU.kind_holding(mib * 2**20)
        assert kind.held == held == CPU.held_by(kind.key) == CPU.held_by(f"{kind.key}+sweep")

    def test_makes_logs_of_its_own_on_a_machine_where_all_are_at_home(self) -> None:
        keys = [kind.key for kind in CPU.log_kinds()]
        assert len(set(keys)) == 4 and all(map(CPU.is_here, keys))

    def test_is_not_asked_of_logs_of_kernels_that_were_timed_in_a_loop(self) -> None:
        assert CPU.held_by(CPU.log_kind().key) is None
        assert CPU.held_by("llvm-test") is None

    def test_is_guessed_where_the_system_does_not_say(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cpu, "cache_bytes", lambda level, cpus: 0)
        assert [cpu.nearest_holding(size, 2) for size in (2**20, 2**24, 2**26)] == ["L2", "L3", "memory"]
