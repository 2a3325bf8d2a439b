"""Write the states of the jobs, and the daemon's own status file."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from autotune.daemon.changes import Changes
from autotune.daemon.clock import DaemonClock
from autotune.daemon.collector import Collector
from autotune.daemon.dispatcher import Dispatcher
from autotune.daemon.end_commands import EndCommands
from autotune.daemon.job_queue import JobQueue
from autotune.daemon.pause import Pause
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.running import RunningStages
from autotune.daemon.stage_times import StageTimes
from autotune.daemon.status_file import StatusFile
from autotune.planning.budget import ended
from autotune.planning.planner import TURN
from autotune.planning.view import RunningView
from autotune.reasons import EndReason, Reason, sentence
from autotune.storage.formats import ENDED
from autotune.storage.job_state import Service, state_of

_LOG = logging.getLogger("autotune.daemon")
_STATE_EVERY_S = 1.0
# How long the states of jobs are written at a time, in seconds: while stages run, while none does, and at the end.
_AT_ONCE_S, _IDLE_S, _LAST_S = 0.05, 0.5, 5.0


@dataclass
class Publisher:
    """Publishes what has changed, at most once a second, and of very many jobs some at a time.

    `failed` says that a job has failed.
    """

    queue: JobQueue
    running: RunningStages
    changes: Changes
    pause: Pause
    dispatcher: Dispatcher
    stage_times: StageTimes
    collector: Collector
    status_file: StatusFile
    end_commands: EndCommands
    clock: DaemonClock
    failed: bool = False
    _published_at: float = 0.0
    _left: dict[int, None] = field(default_factory=dict)
    _waits: dict[int, Reason] = field(default_factory=dict)

    @property
    def behind(self) -> bool:
        """Whether there are jobs that have yet to be looked at."""
        return bool(self._left)

    def publish(self, stopping: bool, last: bool = False) -> None:
        """Write the state files and the status file where they have changed.

        Args:
            stopping: Whether the daemon starts nothing more.
            last: Write even if that was done less than a second ago.

        Raises:
            DiskProblem: A file could not be written.
        """
        now, running = self.clock.monotonic(), self.running.views
        if not (self.changes.unpublished or self._left or last):
            return
        if now - self._published_at < _STATE_EVERY_S and running and not last:
            return
        self._published_at = now
        if self.changes.unpublished or last:
            self.changes.unpublished = False
            self._waits = {**self.dispatcher.waits(), **self.queue.excluded}
            # The status file comes first: it is small and may still fit on a full disk.
            trouble, busy, nodes = self.pause.trouble, self.collector.busy, self.running.runner.nodes()
            planner, aside = self.dispatcher.planner, self.dispatcher.aside.shown
            self.status_file.publish(planner, running, self._waits, stopping, trouble, busy, nodes, aside)
            self._left |= dict.fromkeys(self.queue.jobs)
        self._publish_jobs(running, now + (_LAST_S if last else _AT_ONCE_S if running else _IDLE_S))

    def _publish_jobs(self, running: list[RunningView], until: float) -> None:
        """Publish the jobs that something has happened to, and of the others as many as there is time for."""
        for id in list(self.changes.jobs):
            self._publish_one(id, running)
            self.changes.jobs.discard(id)
        while self._left and self.clock.monotonic() < until:
            self._publish_one(next(iter(self._left)), running)

    def _publish_one(self, id: int, running: list[RunningView]) -> None:
        if (job := self.queue.jobs.get(id)) is not None:
            if not job.ended:
                with self.queue.skipping_unusable(id):
                    self._publish_job(job, running)
            if job.ended:
                with self.queue.skipping_unusable(job.id):
                    self.end_commands.start(job)
            if job.ended and job.id in self.queue.jobs:
                self.queue.put_away(job)
                self.stage_times.forget(id)
        self._left.pop(id, None)

    def _publish_job(self, job: QueuedJob, running: list[RunningView]) -> None:
        busy = any(view.id.job == job.id for view in running)
        why = ended(job.view(), running) if job.control.wanted == "run" else None
        if why is not None:
            self._finish(job, why)
        else:
            wait = self._waits.get(job.id, TURN)
            state, reason = state_of(job.control, job.state, Service(busy, wait))
            if state in ENDED and busy:  # an end is written when nothing of the job runs any more
                return
            if state == "waiting":
                job.journal.waiting(wait)
            job.publish(state, reason)
        if job.ended:
            _LOG.info("%s: %s, %s", job.paths.folder.name, job.state.state, sentence(job.state.reason))

    def _finish(self, job: QueuedJob, why: EndReason) -> None:
        diagnoses = [task.set_aside for task in job.state.tasks if task.set_aside]
        first = diagnoses[0] if diagnoses else ""
        if diagnoses and len(diagnoses) == len(job.spec.tunable):
            self.failed = True
            job.publish("failed", Reason("all-set-aside", detail=first))
        elif job.trials.all_failed:
            self.failed = True
            job.publish("failed", Reason("no-time", detail=first or job.trials.last_failure()))
        else:
            latency = job.confirmed_ms if why == "stop-at-met" else None
            job.publish("done", Reason(why, set_aside=len(diagnoses), latency_ms=latency, detail=first))
