"""The daemon with a runner and a clock of the tests' own: what it does about every outcome, and when.

Nothing is patched and nothing waits: the clock moves on whenever the daemon would wait.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise

import pytest

from autotune.commands import job_status
from autotune.config import load_config
from autotune.daemon.clock import DaemonClock
from autotune.daemon.loop import Daemon
from autotune.errors import DaemonRunning, TimedOut
from autotune.planning.view import MachineResources
from autotune.processes.messages import RunStage, StageReport
from autotune.reasons import Reason, sentence
from autotune.storage import formats, locks
from autotune.storage.confirmation import read_confirmation
from autotune.storage.daemon_info import ClusterNode
from autotune.storage.formats import Control, JobState, StageFile
from autotune.storage.journal import StageFailed, read
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.watch import nudge
from autotune.workers.stage_runner import StageRunner

from ..waiting import until

NOON = time.mktime((2026, 3, 2, 12, 0, 0, 0, 0, -1))
HOUR = 3600.0
Answer = Callable[[RunStage], StageReport | None]


class ManualClock(DaemonClock):
    def __init__(self) -> None:
        self.now = NOON

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - NOON

    def wait(self, descriptors: Sequence[int], timeout_s: float) -> list[int]:
        self.now += timeout_s
        return []


class ScriptedRunner(StageRunner):
    """Reports of each stage what a function says, at the next opportunity; None for a stage that runs until killed."""

    def __init__(self, clock: ManualClock, answer: Answer) -> None:
        self.clock = clock
        self.answer = answer
        self.started: list[tuple[float, RunStage]] = []
        self.killed: list[int] = []
        self.stopped = False
        self._ready: list[StageReport] = []

    def run(self, kind: str, request: RunStage) -> None:
        assert kind == "simulated"
        self.started.append((self.clock.monotonic(), request))
        report = self.answer(request)
        self._ready += [report] if report else []

    def kill_stage(self, id: int) -> None:
        self.killed.append(id)
        self._ready.append(StageReport(id, "crashed", reason="killed by SIGKILL"))

    def descriptors(self) -> list[int]:
        return []

    def reports(self, readable: Collection[int]) -> Iterator[StageReport]:
        while self._ready:
            yield self._ready.pop(0)

    def stop(self) -> None:
        self.stopped = True


class ClusterRunner(ScriptedRunner):
    """Runs stages on a cluster of one node, which serves or does not."""

    serving: ClusterNode | None = None

    def machine(self) -> MachineResources:
        node = self.serving
        return MachineResources(node.cpus, node.devices) if node else MachineResources((), ())

    def nodes(self) -> tuple[ClusterNode, ...]:
        return (self.serving,) if self.serving else ()

    def trouble(self) -> str:
        return "n1 joining"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def job(make_job: Callable[..., JobPaths], simulate: Callable[..., None]) -> JobPaths:
    simulate(devices=1)
    return make_job(1, "net", tasks=1, target="simulated")


def daemon(workspace: Workspace, clock: ManualClock, runner: ScriptedRunner, **options: object) -> Daemon:
    return Daemon(workspace, load_config(workspace.config), runner=runner, clock=clock, **options)  # type: ignore


def state(job: JobPaths) -> JobState:
    return formats.read(JobState, job.state)


def test_a_stage_that_fails_is_tried_again_and_then_its_task_is_set_aside(
    workspace: Workspace, clock: ManualClock, job: JobPaths
) -> None:
    runner = ScriptedRunner(clock, lambda stage: StageReport(stage.id, "failed", 1.0, reason="no kernel"))
    assert daemon(workspace, clock, runner, drain=True).run() == 1
    attempts = load_config(workspace.config).daemon.attempts
    assert [stage.attempt for _, stage in runner.started] == list(range(attempts))
    assert len({stage.id for _, stage in runner.started}) == attempts
    assert (state(job).state, state(job).reason) == (
        "failed",
        Reason("all-set-aside", detail="search: failed: no kernel"),
    )
    assert runner.stopped and not workspace.daemon_info.exists()


@pytest.mark.parametrize(("policy", "leases"), [("interleave", True), ("uncoordinated", False)])
def test_a_stage_leases_what_it_runs_on_unless_its_policy_waits_for_nobody(
    workspace: Workspace, clock: ManualClock, job: JobPaths, policy: str, leases: bool
) -> None:
    runner = ScriptedRunner(clock, lambda stage: StageReport(stage.id, "failed"))
    daemon(workspace, clock, runner, policy=policy, drain=True).run()
    (stage, *_) = (stage for _, stage in runner.started)
    assert stage.cpus and bool(stage.resources) == leases


def test_a_whole_model_that_cannot_be_timed_is_tried_again_and_then_tuned_on(
    workspace: Workspace, clock: ManualClock, make_job: Callable[..., JobPaths], simulate: Callable[..., None]
) -> None:
    simulate(devices=1)
    job = make_job(1, "net", tasks=1, target="simulated", stop_at_ms=5.0)
    formats.write(job.stage(0, 0), StageFile(0, 0, "confirm"))
    runner = ScriptedRunner(clock, lambda stage: StageReport(stage.id, "failed", 1.0, reason="no library"))
    assert daemon(workspace, clock, runner, drain=True).run() == 1
    attempts = load_config(workspace.config).daemon.attempts
    started = [(stage.kind, stage.round) for _, stage in runner.started]
    assert started == [("confirm", 0)] * attempts + [("search", 1)] * attempts
    assert state(job).reason == Reason("all-set-aside", detail="search: failed: no library")
    confirmation = read_confirmation(job)
    assert (
        confirmation is not None
        and confirmation.failed == "confirm: failed: no library"
        and not confirmation.meets(5.0)
    )


def test_a_command_that_a_killed_daemon_did_not_come_to_start_is_started_by_the_next(
    workspace: Workspace, clock: ManualClock, make_job: Callable[..., JobPaths], simulate: Callable[..., None]
) -> None:
    simulate(devices=1)
    job = make_job(target="simulated", on_end="echo ran", state=JobState("done", Reason("budget-used")))
    for path in (job.folder, job.spec):
        path.chmod(path.stat().st_mode & ~0o022)
    for _ in range(2):
        daemon(workspace, clock, ScriptedRunner(clock, lambda stage: None), drain=True).run()
    until(lambda: job.on_end_log.exists() and job.on_end_log.read_text())
    assert job.on_end_log.read_text() == "ran\n"


def test_a_stage_whose_cpus_somebody_has_is_tried_again_a_second_later_without_end(
    workspace: Workspace, clock: ManualClock, job: JobPaths
) -> None:
    runner = ScriptedRunner(clock, lambda stage: StageReport(stage.id, "busy", reason="cpu-0 in use"))
    with pytest.raises(TimedOut):
        daemon(workspace, clock, runner, drain=True, until=NOON + 20).run()
    moments = [moment for moment, _ in runner.started]
    assert len(moments) > 10
    assert all(1.0 <= later - sooner <= 2.0 for sooner, later in pairwise(moments))
    assert {stage.attempt for _, stage in runner.started} == {0}
    reason = state(job).reason
    assert state(job).state == "waiting" and reason is not None and reason.topic == "lease"


def test_a_stage_that_is_lost_with_its_machine_runs_again_and_is_not_blamed(
    workspace: Workspace, clock: ManualClock, job: JobPaths
) -> None:
    runner = ScriptedRunner(clock, lambda stage: StageReport(stage.id, "lost", reason="node n1 is lost"))
    with pytest.raises(TimedOut):
        daemon(workspace, clock, runner, drain=True, until=NOON + 20).run()
    assert len(runner.started) > 10
    assert {stage.attempt for _, stage in runner.started} == {0}
    losses = [event for event in read(job.journal) if isinstance(event, StageFailed)]
    assert {(event.outcome, event.detail) for event in losses} == {("lost", "node n1 is lost")}


def test_a_cluster_starts_nothing_without_nodes_and_goes_on_as_soon_as_one_serves(
    workspace: Workspace, clock: ManualClock, make_job: Callable[..., JobPaths], simulate: Callable[..., None]
) -> None:
    runner = ClusterRunner(clock, lambda stage: StageReport(stage.id, "failed", reason="no kernel"))
    assert daemon(workspace, clock, runner, drain=True).run() == 0, "there is nothing to do"
    simulate(devices=1)
    job = make_job(1, "net", tasks=1, target="simulated")
    with pytest.raises(TimedOut):
        daemon(workspace, clock, runner, drain=True, until=NOON + 20).run()
    assert not runner.started
    assert state(job).reason == Reason("no-node", detail="n1 joining")
    runner.serving = ClusterNode("n1", "serving", "", (10_000,), (), ("simulated:n1/gpu0",))
    assert daemon(workspace, clock, runner, drain=True).run() == 1
    assert {stage.cpus for _, stage in runner.started} == {(10_000,)}


def test_a_disk_that_takes_nothing_is_tried_less_and_less_often(
    workspace: Workspace, clock: ManualClock, job: JobPaths
) -> None:
    runner = ScriptedRunner(clock, lambda stage: StageReport(stage.id, "blocked", reason="the disk is full"))
    with pytest.raises(TimedOut):
        daemon(workspace, clock, runner, drain=True, until=NOON + 60).run()
    moments = [moment for moment, _ in runner.started]
    pauses = [round(later - sooner) for sooner, later in pairwise(moments)]
    assert pauses == sorted(pauses) and pauses[0] <= 2 and pauses[-1] >= 10
    assert {stage.attempt for _, stage in runner.started} == {0}, "it is not the stage's fault"


def test_nothing_starts_outside_the_window(workspace: Workspace, clock: ManualClock, job: JobPaths) -> None:
    clock.now = NOON + 9.9 * HOUR
    runner = ScriptedRunner(clock, lambda stage: StageReport(stage.id, "failed", reason="no kernel"))
    assert daemon(workspace, clock, runner, drain=True, window="22:00-07:00").run() == 1
    assert 10 * HOUR <= runner.started[0][0] <= 10 * HOUR + 60


def test_until_lets_nothing_start_and_gives_up_what_does_not_end_within_the_grace(
    workspace: Workspace, clock: ManualClock, job: JobPaths
) -> None:
    runner = ScriptedRunner(clock, lambda stage: None)
    grace_s = load_config(workspace.config).daemon.stop_grace_s
    with pytest.raises(TimedOut):
        daemon(workspace, clock, runner, until=NOON + 100).run()
    assert len(runner.started) == 1 and runner.stopped
    assert 100 + grace_s <= clock.monotonic() <= 100 + grace_s + 2


def test_a_cancelled_job_has_its_stage_killed_and_no_failure_noted(
    workspace: Workspace, clock: ManualClock, job: JobPaths
) -> None:
    def cancel(stage: RunStage) -> None:
        formats.write(job.control, Control("cancel"))
        nudge(workspace.jobs)

    runner = ScriptedRunner(clock, cancel)
    assert daemon(workspace, clock, runner, drain=True).run() == 0
    assert runner.killed == [runner.started[0][1].id]
    assert state(job).state == "cancelled"
    assert not job.journal.exists() or "stage-failed" not in job.journal.read_text()


def test_a_held_job_is_finishing_while_its_stage_runs_in_its_file_as_in_status(
    workspace: Workspace, clock: ManualClock, job: JobPaths
) -> None:
    def hold(stage: RunStage) -> None:
        formats.write(job.control, Control("hold"))
        nudge(workspace.jobs)

    class Looking(ScriptedRunner):
        shown: list[tuple[str, str]]

        def stop(self) -> None:
            status = job_status.snapshot(workspace)[0]
            self.shown = [(status.state, status.reason), (state(job).state, sentence(state(job).reason))]

    runner = Looking(clock, hold)
    with pytest.raises(TimedOut):
        daemon(workspace, clock, runner, until=NOON + 20).run()
    assert runner.shown == [("held", sentence(Reason("finishing")))] * 2


def test_a_job_that_this_machine_cannot_work_for_is_tried_again_soon_then_every_ten_seconds(
    workspace: Workspace, clock: ManualClock, job: JobPaths
) -> None:
    runner = ScriptedRunner(clock, lambda stage: StageReport(stage.id, "unfit", reason="no linker"))
    assert daemon(workspace, clock, runner, drain=True).run() == 1
    assert len(runner.started) == 2, "in a drain it is tried twice"
    runner.started.clear()
    assert daemon(workspace, clock, runner, until=clock.now + 60).run() == 1
    moments = [moment for moment, _ in runner.started]
    pauses = [later - sooner for sooner, later in pairwise(moments)]
    assert len(pauses) > 3 and pauses[0] <= 2.5
    assert all(10.0 <= pause <= 12.0 for pause in pauses[1:])
    assert {stage.attempt for _, stage in runner.started} == {0}, "it is not the stage's fault"
    assert state(job).reason == Reason("unfit-machine", detail="no linker")
    assert job_status.snapshot(workspace)[0].state == "waiting"


def test_a_job_for_which_the_machine_lacks_something_goes_on_once_it_is_mended_and_others_meanwhile(
    workspace: Workspace, clock: ManualClock, job: JobPaths, make_job: Callable[..., JobPaths]
) -> None:
    make_job(2, "other", tasks=1, target="simulated")

    def answer(stage: RunStage) -> StageReport:
        if stage.job == "0001-net" and clock.now < NOON + 1:
            return StageReport(stage.id, "unfit", reason="no linker")
        return StageReport(stage.id, "failed", reason="no kernel")

    runner = ScriptedRunner(clock, answer)
    daemon(workspace, clock, runner, drain=True).run()
    assert state(job).reason == Reason("all-set-aside", detail="search: failed: no kernel")
    others = [moment for moment, stage in runner.started if stage.job == "0002-other"]
    assert max(others) < 5


class ReplacingClock(ManualClock):
    """Puts a copy in the place of `jobs/` at the third wait, and then looks whether another daemon could serve it."""

    def __init__(self, workspace: Workspace, locked_by_another: bool = False) -> None:
        super().__init__()
        self.workspace = workspace
        self.locked_by_another = locked_by_another
        self.waits = 0
        self.lease: locks.Lease | None = None

    def wait(self, descriptors: Sequence[int], timeout_s: float) -> list[int]:
        self.waits += 1
        if self.waits == 3:
            aside = self.workspace.root / "aside"
            self.workspace.jobs.rename(aside)
            shutil.copytree(aside, self.workspace.jobs)
        if self.waits == (3 if self.locked_by_another else 5):
            self.lease = locks.try_lock(self.workspace.daemon_lock)
        return super().wait(descriptors, timeout_s)


def test_no_second_daemon_serves_a_copy_that_takes_the_place_of_the_jobs(workspace: Workspace, job: JobPaths) -> None:
    clock = ReplacingClock(workspace)
    runner = ScriptedRunner(clock, lambda _: None)
    with pytest.raises(TimedOut):
        daemon(workspace, clock, runner, until=NOON + 60).run()
    assert clock.waits > 5 and clock.lease is None


def test_a_daemon_leaves_when_another_was_first_to_serve_the_copy(workspace: Workspace, job: JobPaths) -> None:
    clock = ReplacingClock(workspace, locked_by_another=True)
    runner = ScriptedRunner(clock, lambda _: None)
    with pytest.raises(DaemonRunning):
        daemon(workspace, clock, runner, until=NOON + 60).run()
    assert clock.lease is not None and runner.stopped
    assert workspace.daemon_info.exists(), "it is the other daemon's by now"
