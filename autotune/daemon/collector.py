"""Take in the reports on stages: results, failures, conditions that keep every stage from running, and their lengths.

How long stages took is kept from one daemon to the next in `logs/estimates.json`. The file may be lost: if it is
missing or damaged, the daemon says so in its log and begins a new one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from autotune.daemon.clock import DaemonClock, Pause
from autotune.daemon.dispatcher import Dispatcher
from autotune.daemon.job_queue import SOMETHING, Change, JobQueue
from autotune.daemon.queued_job import QueuedJob
from autotune.errors import AutotuneError
from autotune.planning.estimates import Estimates
from autotune.planning.view import JobView, RunningView
from autotune.processes.messages import StageReport
from autotune.stages.blame import explained_attempts
from autotune.storage import formats
from autotune.storage.formats import EstimatesFile
from autotune.storage.paths import Workspace

_LOG = logging.getLogger("autotune.daemon")
_SAVE_EVERY_S = 30.0
# How many tasks are kept for each kind of stage and device. The file then has a few hundred kilobytes.
_MAX_TASKS = 2000


@dataclass
class StageTimes:
    """The estimates of a workspace, and the file that keeps them."""

    workspace: Workspace
    estimates: Estimates
    clock: DaemonClock = field(default_factory=DaemonClock)
    _new: bool = False
    _saved_at: float = 0.0

    @classmethod
    def load(cls, workspace: Workspace, clock: DaemonClock | None = None) -> StageTimes:
        """Read what earlier daemons have written. If it cannot be used, begin without any estimates."""
        clock = clock or DaemonClock()
        try:
            means = formats.read(EstimatesFile, workspace.estimates).means
            return cls(workspace, Estimates.from_json({"means": means}), clock)
        except FileNotFoundError:
            _LOG.info("no stage has been timed in this workspace yet: the first forecasts are guesses")
        except (AutotuneError, KeyError, TypeError, ValueError) as error:
            _LOG.warning("learning anew how long stages take: %s cannot be used: %s", workspace.estimates, error)
        return cls(workspace, Estimates(), clock)

    def learn(self, view: JobView, stage: RunningView, summary: dict[str, Any], seconds: float) -> None:
        """Add the duration of a stage that succeeded. `summary` says how many candidates it had."""
        if not seconds:
            return
        count = int(summary.get("built", 0) or summary.get("measured", 0) or 0) + int(summary.get("failed", 0) or 0)
        subjects = (str(view.id), view.tasks[stage.id.task].key)
        self.estimates.add(stage.kind, view.device, subjects, count, seconds)
        self._new = True

    def forget(self, job: int) -> None:
        """Forget the estimates of one job. Those of its tasks stay."""
        self.estimates.forget(str(job))

    def save(self, last: bool = False) -> None:
        """Write new estimates: at most every 30 s, unless this is the `last` time. An error is logged and ignored."""
        now = self.clock.monotonic()
        if not self._new or (now - self._saved_at < _SAVE_EVERY_S and not last):
            return
        self._saved_at = now
        try:
            means = self.estimates.lasting(_MAX_TASKS).to_json()["means"]
            formats.write(self.workspace.estimates, EstimatesFile(tuple(means)))
            self._new = False
        except AutotuneError as error:
            _LOG.warning("could not keep how long stages take: %s", error)


@dataclass
class Collector:
    """Applies the reports of the runner to the jobs whose stages they are about.

    Attributes:
        attempts: How often a stage may fail before its task is set aside.
        busy: What disturbed the last measurement; empty if nothing did.
    """

    attempts: int
    queue: JobQueue
    dispatcher: Dispatcher
    pause: Pause
    stage_times: StageTimes
    busy: str = ""

    def take(self, report: StageReport) -> Change:
        """Take in one report.

        Raises:
            DiskProblem: The disk refuses what has to be written.
        """
        stage = self.dispatcher.running.end(report.id)
        job = self.queue.jobs.get(stage.id.job) if stage else None
        if stage is None or job is None:
            return SOMETHING
        if report.outcome == "busy":
            self.dispatcher.put_off(stage)
        else:
            self.queue.attempt(job.id, partial(self._apply, job, stage, report))
        return Change(True, frozenset({job.id}))

    def _apply(self, job: QueuedJob, stage: RunningView, report: StageReport) -> None:
        job.refresh(stage.id.task)
        if stage.kind == "measure":  # whatever became of it, it may have logged trials
            self.queue.follow_logs()
        match report.outcome:
            case "done":
                self._take_result(job, stage, report)
            case "blocked":  # nothing can run: the stage starts again after a pause
                self.pause.begin(report.reason)
            case "unfit":  # this machine cannot work for the job: the stage starts again when that may be mended
                self.queue.block(job, report.reason)
            case "lost":  # its machine is gone: the stage starts again on another
                _record_failure(job, stage, report)
            case "device-lost":  # its board is gone: the stage starts again when one works
                _record_failure(job, stage, report)
                self.dispatcher.running.aside.set_aside(stage.device, report.reason)
            case _:
                self._take_failure(job, stage, report)

    def _take_result(self, job: QueuedJob, stage: RunningView, report: StageReport) -> None:
        self.dispatcher.running.aside.works(stage.device)
        self.pause.end()
        self.queue.unblock(job)
        job.failures.pop(stage.id, None)
        self.stage_times.learn(job.view(), stage, report.summary, report.seconds)
        facts = {key: value for key, value in report.summary.items() if key != "kind"}
        job.journal.stage_done(stage, report, facts)
        name = job.paths.folder.name
        for failure in report.summary.get("sessions_failed", ()):
            _LOG.warning("%s: a session on a board failed: %s", name, failure)
        if stage.kind == "search" and not report.summary.get("proposed"):
            job.mark_exhausted(stage.id.task)
        if stage.kind == "measure":
            self.busy = str(report.summary.get("busy", ""))
            _LOG.info("%s: %s", name, job.progress.line(stage.id.task, report.summary))

    def _take_failure(self, job: QueuedJob, stage: RunningView, report: StageReport) -> None:
        """Count a failure, and after too many go on without the task or the confirmation."""
        if job.control.wanted == "cancel":  # the stage was killed for that
            return
        diagnosis = _record_failure(job, stage, report)
        id = stage.id
        failures = job.failures.get(id, 0) + 1
        job.failures[id] = failures
        explained = explained_attempts(job.paths, id.task, id.round, failures - 1)
        if failures - explained < self.attempts:
            return
        if stage.kind in ("compile", "confirm"):  # which is no fault of the task
            job.give_up_confirming(id, diagnosis)
        else:
            job.set_aside(id.task, diagnosis)


def _record_failure(job: QueuedJob, stage: RunningView, report: StageReport) -> str:
    diagnosis = job.journal.stage_failed(stage, report)
    _LOG.warning("%s task %d round %d: %s", job.paths.folder.name, stage.id.task, stage.id.round, diagnosis)
    return diagnosis
