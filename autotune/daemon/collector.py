"""Handle reports on stages: results, failures, and conditions that keep every stage from running."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from autotune.config import Config
from autotune.daemon.changes import Changes
from autotune.daemon.dispatcher import Dispatcher
from autotune.daemon.job_queue import JobQueue
from autotune.daemon.pause import Pause
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.running import RunningStages
from autotune.daemon.stage_times import StageTimes
from autotune.planning.view import RunningView
from autotune.processes.messages import StageReport
from autotune.stages.progress import explained_attempts

_LOG = logging.getLogger("autotune.daemon")


@dataclass
class Collector:
    """Applies the reports of the runner to the jobs whose stages they are about.

    `busy` is what disturbed the last measurement, if anything did.
    """

    config: Config
    queue: JobQueue
    running: RunningStages
    changes: Changes
    pause: Pause
    dispatcher: Dispatcher
    stage_times: StageTimes
    busy: str = ""

    def take(self, report: StageReport) -> None:
        """Take in one report.

        Raises:
            DiskProblem: The disk refuses what has to be written.
        """
        self.dispatcher.stalled = False
        self.changes.note()
        view = self.running.end(report.id)
        if view is None or view.id.job not in self.queue.jobs:
            return
        job, id = self.queue.jobs[view.id.job], view.id
        self.changes.jobs.add(id.job)
        if report.outcome == "busy":
            self.dispatcher.put_off(view)
            return
        with self.queue.skipping_unusable(job.id):
            job.refresh(id.task)
            if view.kind == "measure":  # whatever became of it, it may have logged trials
                self.queue.follow_logs()
            if report.outcome == "blocked":  # no fault of the stage, which runs again when that is over
                self.pause.begin(report.reason)
            elif report.outcome == "unfit":  # nor is this
                self.queue.block(job, report.reason)
            elif report.outcome == "lost":  # nor this: it runs again, elsewhere
                self._record_failure(job, view, report)
            elif report.outcome == "device-lost":  # nor this
                self._record_failure(job, view, report)
                self.dispatcher.aside.set_aside(view.device, report.reason)
            elif report.outcome == "done":
                self.dispatcher.aside.works(view.device)
                self.pause.end()
                self.queue.unblock(job)
                self._take_result(job, view, report)
            elif job.control.wanted != "cancel":
                self._take_failure(job, view, self._record_failure(job, view, report))

    def _take_result(self, job: QueuedJob, view: RunningView, report: StageReport) -> None:
        id, kind = view.id, view.kind
        job.failures.pop(id, None)
        self.stage_times.learn(job.view(), view, report.summary, report.seconds)
        facts = {key: value for key, value in report.summary.items() if key != "kind"}
        job.journal.stage_done(view, report, facts)
        for said in report.summary.get("sessions_failed", ()):
            _LOG.warning("%s: a session on a board failed: %s", job.paths.folder.name, said)
        if kind == "search" and not report.summary.get("proposed"):
            job.mark_exhausted(id.task)
        if kind == "measure":
            self.busy = str(report.summary.get("busy", ""))
            _LOG.info("%s: %s", job.paths.folder.name, job.progress.line(id.task, report.summary))

    def _take_failure(self, job: QueuedJob, view: RunningView, diagnosis: str) -> None:
        id = view.id
        attempts = job.failures[id] = job.failures.get(id, 0) + 1
        if attempts - explained_attempts(job.paths, id.task, id.round, attempts - 1) >= self.config.daemon.attempts:
            if view.kind == "confirm":  # which is no fault of the task
                job.give_up_confirming(id, diagnosis)
            else:
                job.set_aside(id.task, diagnosis)

    def _record_failure(self, job: QueuedJob, view: RunningView, report: StageReport) -> str:
        diagnosis = job.journal.stage_failed(view, report)
        _LOG.warning("%s task %d round %d: %s", job.paths.folder.name, view.id.task, view.id.round, diagnosis)
        return diagnosis
