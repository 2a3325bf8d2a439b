"""What was disturbed is measured again, a bounded number of times, and is marked where that does not help."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from autotune.machine.disturbance import Quiet
from autotune.stages import guard as module
from autotune.stages.guard import Guard, Guarded, Watch, load_quiet, save_quiet
from autotune.stages.measure import Session
from autotune.storage.paths import Workspace

BUSY = "other processes used 50% of its CPUs"


@dataclass
class Machine:
    """A machine that is busy for as many measurements as is said; each one there takes twice as long."""

    busy: int
    measured: int = 0
    pauses: list[float] = field(default_factory=list)

    def once(self) -> list[float]:
        self.measured += 1
        return [10.0 if self.measured > self.busy else 20.0 + self.measured]

    def end(self) -> tuple[str, float]:
        return (BUSY, 0.0) if self.measured <= self.busy else ("", 60.0)

    def guard(self, repeats: int = 2, limit_s: float = 10.0) -> Guard:
        return Guard(lambda: self, repeats, limit_s, self.pauses.append)


def test_a_quiet_measurement_is_made_once() -> None:
    machine = Machine(busy=0)
    assert machine.guard().measure(machine.once) == Guarded([10.0], 0, "", 60.0)
    assert (machine.measured, machine.pauses) == (1, [])


def test_a_disturbed_measurement_is_made_again_after_a_pause_and_counts_when_quiet() -> None:
    machine = Machine(busy=2)
    assert machine.guard().measure(machine.once) == Guarded([10.0], 2, "", 60.0)
    assert machine.pauses == [0.1, 0.1]


def test_a_measurement_that_cannot_be_had_quietly_is_marked_and_has_its_fastest_times() -> None:
    machine = Machine(busy=99)
    assert machine.guard().measure(machine.once) == Guarded([21.0], 2, BUSY, 0.0)
    assert machine.measured == 3


def test_after_two_hopeless_measurements_none_is_made_again_until_one_is_quiet() -> None:
    machine = Machine(busy=7)
    guard = machine.guard()
    marked = [guard.measure(machine.once) for _ in range(3)]
    assert [item.again for item in marked] == [2, 2, 0]
    assert guard.measure(machine.once).disturbed == ""
    machine.busy = 99
    assert guard.measure(machine.once).again == 2


def test_a_measurement_tells_of_repeats_and_failures_only_where_there_were_some() -> None:
    assert Session([], Quiet()).summary([]) == {"verified": 0, "verification": 0}
    told = Session([], Quiet(), again=2, failures=["phone:0: crash"]).summary([])
    assert (told["again"], told["sessions_failed"]) == (2, ["phone:0: crash"])


def test_nothing_is_begun_that_may_take_too_long() -> None:
    machine = Machine(busy=99)
    assert machine.guard(limit_s=0.0).measure(machine.once).again == 0


def test_a_guard_that_may_not_repeat_only_marks() -> None:
    machine = Machine(busy=99)
    assert machine.guard(repeats=0).measure(machine.once) == Guarded([21.0], 0, BUSY, 0.0)


@pytest.fixture
def hog() -> Iterator[int]:
    """A process that takes as much as it can get of one CPU, which is this process's only one, too."""
    usable = os.sched_getaffinity(0)
    cpu = max(usable)
    os.sched_setaffinity(0, {cpu})
    pid = os.fork()
    while not pid:
        pass
    yield cpu
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    os.sched_setaffinity(0, usable)


def spin() -> None:
    for _ in range(3_000_000):
        pass


def test_a_process_that_shares_the_cpu_is_noticed(hog: int) -> None:
    watch = Watch.begin((hog,), Quiet())
    spin()
    reason, sentinel_us = watch.end()
    assert "other processes used" in reason or "waited for a CPU" in reason
    assert sentinel_us == 0


def test_quiet_times_are_kept_for_this_kind_of_cpu(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_quiet(workspace) == Quiet()
    save_quiet(workspace, Quiet((60.5, 61.0)))
    assert load_quiet(workspace) == Quiet((60.5, 61.0))
    monkeypatch.setattr(module, "cpu_model", lambda: "another")
    assert load_quiet(workspace) == Quiet(), "the workspace was moved"


def test_a_damaged_file_of_quiet_times_is_begun_anew(workspace: Workspace) -> None:
    workspace.quiet_times.write_text("{")
    assert load_quiet(workspace) == Quiet()
