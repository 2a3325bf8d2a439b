"""A job none of whose tasks has a time has failed, however it came to its end, and a retry has the whole budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from autotune.commands import control
from autotune.processes.messages import RunStage, StageReport
from autotune.reasons import Reason, sentence
from autotune.storage import formats
from autotune.storage.formats import Failure, JobState, StageFile, TaskSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

from .test_loop import ManualClock, ScriptedRunner, clock, daemon, state  # noqa: F401

BATCH = 4
ENDINGS: dict[str, dict[str, object]] = {
    "the budget is used": {"trials": 2 * BATCH},
    "its time is used": {"within_s": 1.0},
    "no task improves": {"trials": 1000},
    "there are no more candidates": {},
}


class Measuring:
    """Answers of a runner: every search is a whole round. Its trials fail; when `well` is set they take 10 us."""

    def __init__(self, workspace: Workspace, job: JobPaths, rounds: int | None = None) -> None:
        self.well = False
        self.trials = 0
        self._workspace = workspace
        self._job = job
        self._rounds = rounds

    def __call__(self, stage: RunStage) -> StageReport:
        spec = formats.read(formats.JobSpec, self._job.spec)
        log = TuningLog(self._workspace.tuning_log(spec.target_key, spec.tasks[stage.task].hash).records)
        proposed = stage.count if self._rounds is None or stage.round < self._rounds or self.well else 0
        for _ in range(proposed):
            self.trials += 1
            log.add([self._trial(stage.round)])
        formats.write(self._job.stage(stage.task, stage.round + 1), StageFile(stage.task, stage.round + 1, "search"))
        self._job.stage(stage.task, stage.round).unlink()
        return StageReport(stage.id, "done", 1.0, {"kind": "search", "proposed": proposed})

    def _trial(self, round: int) -> Trial:
        failure = None if self.well else Failure("build", "error", "no such instruction")
        times = (10.0,) if self.well else ()
        hash = f"{self._job.id:08x}{self.trials:08x}"
        return Trial(hash, [], [], times, failure, self._job.folder.name, round, float(self.trials))


@pytest.mark.parametrize(("ending", "fresh"), [*zip(ENDINGS, (True, False, False, True), strict=True)])
def test_a_job_without_times_has_failed_and_a_retry_has_its_whole_budget(
    workspace: Workspace,
    clock: ManualClock,  # noqa: F811
    make_job: Callable[..., JobPaths],
    simulate: Callable[..., None],
    ending: str,
    fresh: bool,
) -> None:
    simulate(devices=1)
    job = make_job(tasks=2, target="simulated", trials_per_round=BATCH, fresh=fresh, **ENDINGS[ending])
    measuring = Measuring(workspace, job, rounds=0 if ending == "there are no more candidates" else None)
    runner = ScriptedRunner(clock, measuring)
    assert daemon(workspace, clock, runner, drain=True).run() == 1
    failed = state(job)
    spent = measuring.trials
    assert failed.state == "failed"
    assert failed.reason == Reason("no-time", detail="build: no such instruction" if spent else "")
    assert "retry" in sentence(failed.reason)

    control.apply(workspace, "retry", [job])
    measuring.well = True
    assert daemon(workspace, clock, ScriptedRunner(clock, measuring), drain=True).run() == 0
    done = state(job)
    assert done.state == "done"
    assert {task.best_us for task in done.tasks} == {10.0}
    assert done.trials_done == measuring.trials - spent
    spec = formats.read(formats.JobSpec, job.spec)
    assert 2 * BATCH <= done.trials_done <= spec.trials


def test_failures_are_forgiven_again_and_again(
    workspace: Workspace,
    clock: ManualClock,  # noqa: F811
    make_job: Callable[..., JobPaths],
    simulate: Callable[..., None],
) -> None:
    simulate(devices=1)
    job = make_job(tasks=1, target="simulated", trials=BATCH, trials_per_round=BATCH)
    measuring = Measuring(workspace, job)
    for attempt in range(1, 4):
        assert daemon(workspace, clock, ScriptedRunner(clock, measuring), drain=True).run() == 1
        assert (measuring.trials, state(job).trials_done) == (attempt * BATCH, BATCH)
        control.apply(workspace, "retry", [job])


def test_a_job_ends_well_when_one_of_its_tasks_has_a_time(
    workspace: Workspace,
    clock: ManualClock,  # noqa: F811
    make_job: Callable[..., JobPaths],
    simulate: Callable[..., None],
) -> None:
    simulate(devices=1)
    job = make_job(tasks=2, target="simulated", trials=2 * BATCH, trials_per_round=BATCH)
    spec = formats.read(formats.JobSpec, job.spec)
    log = TuningLog(workspace.tuning_log(spec.target_key, spec.tasks[1].hash).records)
    log.add([Trial("a" * 16, [], [], (10.0,), None, "0009-other", 0, 1.0)])
    assert daemon(workspace, clock, ScriptedRunner(clock, Measuring(workspace, job)), drain=True).run() == 0
    assert state(job).state == "done"


def test_a_job_without_anything_to_tune_has_not_failed(
    workspace: Workspace,
    clock: ManualClock,  # noqa: F811
    make_job: Callable[..., JobPaths],
    simulate: Callable[..., None],
) -> None:
    simulate(devices=1)
    job = make_job(tasks=(TaskSpec("reshape", "f" * 16, 1, "1x8", 0.0, False),), target="simulated")
    assert daemon(workspace, clock, ScriptedRunner(clock, Measuring(workspace, job)), drain=True).run() == 0
    assert (state(job).state, state(job).reason) == ("done", Reason("nothing-to-tune"))


def test_a_retry_after_a_cancel_still_counts_what_was_forgiven_before(
    workspace: Workspace, make_job: Callable[..., JobPaths]
) -> None:
    tasks = (formats.TaskProgress(5), formats.TaskProgress(3))
    job = make_job(state=JobState("failed", Reason("no-time"), 8, tasks))
    control.apply(workspace, "retry", [job])
    first = formats.read(formats.Control, job.control)
    assert first.forgiven == (5, 3) and first.forgiven_at > 0
    formats.write(job.state, JobState("waiting", None, 1, (formats.TaskProgress(1), formats.TaskProgress()), None, 1))
    control.apply(workspace, "cancel", [job])
    control.apply(workspace, "retry", [job])
    assert formats.read(formats.Control, job.control) == dataclasses.replace(first, retries=2)
