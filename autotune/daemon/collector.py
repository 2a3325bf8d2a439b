"""Take in what became of stages: results, failures, and what keeps everybody from working."""

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
from autotune.stages.progress import explained_attempts
from autotune.workers.runner import Report

_LOG = logging.getLogger("autotune.daemon")


@dataclass
class Collector:
    """Books the reports of the runner on the jobs whose stages they are about."""

    config: Config
    queue: JobQueue
    running: RunningStages
    changes: Changes
    pause: Pause
    dispatcher: Dispatcher
    stage_times: StageTimes

    def take(self, report: Report) -> None:
        """Take in one report.

        Raises:
            DiskProblem: the disk refuses what has to be written.
        """
        self.dispatcher.stalled = False
        self.changes.note()
        view = self.running.end(report.id)
        if view is None or view.id.job not in self.queue.jobs:
            return
        job, id = self.queue.jobs[view.id.job], view.id
        if report.outcome == "busy":
            self.dispatcher.put_off(job.id, report.reason)
            return
        with self.queue.leaving_out(job.id):
            job.refresh(id.task)
            if view.kind == "measure":  # whatever became of it, it may have logged trials
                self.queue.follow_logs()
            if report.outcome == "blocked":  # no fault of the stage, which runs again when that is over
                self.pause.begin(report.reason)
            elif report.outcome == "done":
                self.pause.end()
                self._take_result(job, view, report)
            elif job.control.wanted != "cancel":
                self._take_failure(job, view, report)

    def _take_result(self, job: QueuedJob, view: RunningView, report: Report) -> None:
        id, kind = view.id, view.kind
        job.failures.pop(id, None)
        self.stage_times.learn(job.view(), view, report.summary, report.seconds)
        facts = {key: value for key, value in report.summary.items() if key != "kind"}
        job.note_stage("stage", view, report.seconds, **facts)
        if kind == "search" and not report.summary.get("proposed"):
            job.exhaust(id.task)
        if kind == "measure":
            _LOG.info("%s: %s", job.paths.folder.name, job.progress(id.task, report.summary))

    def _take_failure(self, job: QueuedJob, view: RunningView, report: Report) -> None:
        id, kind = view.id, view.kind
        attempts = job.failures[id] = job.failures.get(id, 0) + 1
        reason = f"{kind}: {report.outcome}: {report.reason}"
        _LOG.warning("%s task %d round %d: %s", job.paths.folder.name, id.task, id.round, reason)
        job.note_stage("stage failed", view, report.seconds, reason=reason)
        if attempts - explained_attempts(job.paths, id.task, id.round, attempts - 1) >= self.config.daemon.attempts:
            job.set_aside(id.task, reason)
