"""Real workers of a real fleet: whatever becomes of one, every stage is reported once, and the next one is served."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.config import load_config
from autotune.machine.leases import lease
from autotune.processes.message_stream import MessageReader
from autotune.processes.messages import RunStage, StageReport, receive
from autotune.storage.paths import JobPaths, Workspace
from autotune.testing import StageRunnerContract
from autotune.workers.worker import Worker
from autotune.workers.worker_pool import WorkerPool

from ..waiting import until

LIMIT_S = 120.0
_ENDED = os.WEXITED | os.WNOWAIT | os.WNOHANG


class TestContract(StageRunnerContract):
    """The pool keeps what every runner promises."""

    @pytest.fixture
    def runner(self, settings: Workspace) -> Iterator[WorkerPool]:
        pool = WorkerPool(settings, 5.0)
        yield pool
        pool.stop()

    def test_the_process_that_opened_the_device_measures_again_and_closes_it_when_it_is_not_used(
        self, runner: WorkerPool, settings: Workspace, job: JobPaths
    ) -> None:
        """A measurement leaves a child of its worker, and the process that this one has the device open in."""
        text = settings.config.read_text()
        settings.config.write_text(f"{text}[measure]\nkept_open_s = 60.0\n")
        self.measure(runner, job, task=0)
        resident, opened = descendants(runner)
        settings.config.write_text(f"{text}[measure]\nkept_open_s = 0.0\n")
        self.measure(runner, job, task=1)
        until(lambda: descendants(runner) == [resident])
        assert gone(opened)

    def test_what_a_stage_reads_from_its_standard_input_is_not_what_its_worker_is_asked(
        self, runner: WorkerPool, settings: Workspace, job: JobPaths
    ) -> None:
        settings.config.write_text(f"{settings.config.read_text()}[measure]\nkept_open_s = 60.0\n")
        self.measure(runner, job, task=0)
        assert {os.readlink(f"/proc/{pid}/fd/0") for pid in descendants(runner)} == {os.devnull}

    def measure(self, runner: WorkerPool, job: JobPaths, task: int) -> None:
        for id in range(3):
            assert self.serve(runner, self.request(runner, job, id, task)).outcome == "done"


def descendants(pool: WorkerPool) -> list[int]:
    """What runs below the worker, parents first."""
    return [child.pid for child in psutil.Process(pool._processes["simulated"].popen.pid).children(recursive=True)]


MakeFleet = Callable[[int], WorkerPool]


@pytest.fixture
def make_fleet(workspace: Workspace) -> Iterator[MakeFleet]:
    made: list[WorkerPool] = []

    def make(stages_each: int) -> WorkerPool:
        made.append(WorkerPool(workspace, 0.5, stages_each))
        return made[-1]

    yield make
    for fleet in made:
        fleet.stop()


def request(id: int, limit_s: float) -> RunStage:
    """A stage of a job that is not there: it fails at once, in a real child of a real worker."""
    return RunStage(id, "0001-gone", 0, 0, "search", (0,), limit_s, count=1)


def reports(fleet: WorkerPool, count: int) -> list[StageReport]:
    received: list[StageReport] = []
    deadline = time.monotonic() + LIMIT_S
    while len(received) < count and time.monotonic() < deadline:
        readable, _, _ = select.select(fleet.descriptors(), [], [], 0.1)
        received += fleet.reports(readable)
    return received


def serve(fleet: WorkerPool, id: int) -> StageReport:
    fleet.run("llvm", request(id, LIMIT_S))
    (report,) = reports(fleet, 1)
    return report


def worker(fleet: WorkerPool) -> int:
    return fleet._processes["llvm"].popen.pid


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_stopped_or_killed_worker_costs_its_stage_and_is_replaced(make_fleet: MakeFleet) -> None:
    """A stopped one is killed at the limit of its stage."""
    fleet = make_fleet(0)
    assert serve(fleet, 1).outcome == "failed"
    stopped = worker(fleet)
    os.kill(stopped, signal.SIGSTOP)
    fleet.run("llvm", request(2, 0.5))
    (report,) = reports(fleet, 1)
    assert (report.id, report.outcome) == (2, "crashed")
    assert "llvm worker did not answer" in report.reason
    assert gone(stopped)
    assert serve(fleet, 3).outcome == "failed"
    killed = worker(fleet)
    assert killed != stopped
    os.kill(killed, signal.SIGSTOP)
    fleet.run("llvm", request(4, LIMIT_S))
    os.kill(killed, signal.SIGKILL)
    (report,) = reports(fleet, 1)
    assert (report.id, report.outcome) == (4, "crashed")
    assert "llvm worker died (SIGKILL)" in report.reason


def test_a_worker_is_replaced_after_its_stages_finishes_what_it_has_and_goes(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(2)
    for id in (1, 2):
        fleet.run("llvm", request(id, LIMIT_S))
    first = worker(fleet)
    fleet.run("llvm", request(3, LIMIT_S))
    second = worker(fleet)
    assert second != first
    assert not gone(first)
    assert {item.id: item.outcome for item in reports(fleet, 3)} == dict.fromkeys((1, 2, 3), "failed")
    assert gone(first)
    assert serve(fleet, 4).outcome == "failed"
    assert worker(fleet) == second
    fleet.run("llvm", request(5, LIMIT_S))
    assert gone(second)


def test_the_seconds_of_a_stage_begin_when_its_leases_are_held(workspace: Workspace, make_fleet: MakeFleet) -> None:
    fleet = make_fleet(0)
    stage = request(1, LIMIT_S)
    fleet.run("simulated", stage)
    reports(fleet, 1)  # the worker is ready
    with lease(load_config(workspace.config).machine.lock_folder, ["cpu-0"], 0.0):
        fleet.run("simulated", replace(stage, id=2, kind="measure", resources=("cpu-0",)))
        time.sleep(1.0)
        held_until = time.monotonic()
    (report,) = reports(fleet, 1)
    assert report.outcome == "failed"
    assert report.seconds <= time.monotonic() - held_until


def test_the_processes_of_a_stage_are_killed_while_its_number_is_still_its_own(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    served = Worker(workspace, MessageReader(os.dup(0)), writer)
    killed = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(os.waitid(os.P_PID, pid, _ENDED)))
    served._start(request(1, LIMIT_S))
    (child,) = served._children.values()
    while served._children:
        select.select([child.answers.descriptor], [], [])
        served._read_answer(child)
    assert [ended.si_pid for ended in killed] == [child.pid]
    assert [report.id for report in receive(MessageReader(reader)) if isinstance(report, StageReport)] == [1]
