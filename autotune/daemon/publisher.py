"""Write what others read of the daemon: its status file, and the state files of the jobs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from autotune.daemon.clock import DaemonClock
from autotune.daemon.collector import StageTimes
from autotune.daemon.dispatcher import Dispatcher
from autotune.daemon.end_commands import EndCommands
from autotune.daemon.job_queue import NOTHING, Change, JobQueue
from autotune.daemon.queued_job import QueuedJob
from autotune.planning.budget import ended
from autotune.planning.planner import TURN, Planner
from autotune.planning.view import RunningView
from autotune.planning.windows import Hours
from autotune.reasons import EndReason, Reason, sentence
from autotune.storage import formats
from autotune.storage.daemon_info import DaemonInfo, RunningStage
from autotune.storage.formats import ENDED
from autotune.storage.identity import Identity
from autotune.storage.job_state import Service, state_of
from autotune.storage.paths import Workspace

_LOG = logging.getLogger("autotune.daemon")
_STATE_EVERY_S = 1.0
_FORECAST_EVERY_S = 5.0
# How long the states of jobs are written at a time, in seconds: while stages run, while none does, and at the end.
_AT_ONCE_S = 0.05
_IDLE_S = 0.5
_LAST_S = 5.0


class Condition(NamedTuple):
    """How the daemon itself is.

    Attributes:
        stopping: Whether it starts nothing more.
        trouble: Why it pauses; empty if it does not.
        busy: What disturbed the last measurement; empty if nothing did.
    """

    stopping: bool = False
    trouble: str = ""
    busy: str = ""


@dataclass
class StatusFile:
    """The file `jobs/.daemon.json`, as it was last written: what runs where, why jobs wait, when they are to end."""

    workspace: Workspace
    hours: Hours
    clock: DaemonClock
    info: DaemonInfo
    _forecast_at: float = 0.0
    _active: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def begin(cls, workspace: Workspace, hours: Hours, policy: str, window: str, clock: DaemonClock) -> StatusFile:
        """Write who serves the workspace.

        Raises:
            DiskProblem: The file cannot be written.
        """
        info = DaemonInfo(Identity.current().to_json(), clock.time(), policy, window=window)
        formats.write(workspace.daemon_info, info)
        return cls(workspace, hours, clock, info)

    def publish(self, dispatcher: Dispatcher, waits: Mapping[int, Reason], condition: Condition) -> None:
        """Write the file, if anything in it has changed.

        Args:
            dispatcher: Has the last plan, and what runs where.
            waits: Why jobs wait, by id.
            condition: How the daemon is.

        Raises:
            DiskProblem: The file could not be written. The next call tries again.
        """
        running = dispatcher.running
        views = running.views
        stages = [RunningStage(*view.id, view.kind, view.cpus, view.started_at, view.device) for view in views]
        info = replace(
            self.info,
            **condition._asdict(),
            running=tuple(stages),
            waits={str(job): reason for job, reason in waits.items()},
            nodes=running.runner.nodes(),
            aside=running.aside.shown,
        )
        planner = dispatcher.planner
        if planner is not None:
            machine = planner.machine
            info = replace(info, cpus=machine.cpus, devices=machine.devices, ends=self._ends(planner, views))
        if info != self.info:
            formats.write(self.workspace.daemon_info, info)
            self.info = info

    def _ends(self, planner: Planner, running: list[RunningView]) -> dict[str, float]:
        """Return when the jobs are expected to end: a new forecast every few seconds, or when a job came or went."""
        active = planner.jobs
        clock = self.clock.monotonic()
        if active == self._active and clock - self._forecast_at < _FORECAST_EVERY_S:
            return self.info.ends
        self._active = active
        self._forecast_at = clock
        now = self.clock.time()
        seconds = planner.forecast(now, running)
        return {str(job): round(self.hours.after(now, left)) for job, left in sorted(seconds.items())}


@dataclass
class Publisher:
    """Publishes what has changed, at most once a second, and of very many jobs some at a time.

    Attributes:
        failed: Whether a job has failed.
    """

    queue: JobQueue
    dispatcher: Dispatcher
    status_file: StatusFile
    end_commands: EndCommands
    stage_times: StageTimes
    clock: DaemonClock
    failed: bool = False
    _condition: Condition | None = None
    _published_at: float = 0.0
    _waits: dict[int, Reason] = field(default_factory=dict)
    # What has yet to be published: what `status` shows, jobs that something has happened to, and all other jobs.
    _status_left: bool = True
    _first: dict[int, None] = field(default_factory=dict)
    _left: dict[int, None] = field(default_factory=dict)

    @property
    def behind(self) -> bool:
        """Whether there are jobs that have yet to be looked at."""
        return bool(self._left)

    def publish(self, change: Change, condition: Condition, last: bool = False) -> Change:
        """Write the state files and the status file where they have changed.

        Args:
            change: What has changed since the last call.
            condition: How the daemon is.
            last: Write even if that was done less than a second ago.

        Returns:
            Whether jobs had to be left out, because their files cannot be used.

        Raises:
            DiskProblem: A file could not be written.
        """
        self._status_left |= change.any or condition != self._condition or last
        self._first |= dict.fromkeys(change.jobs)
        self._condition = condition
        now = self.clock.monotonic()
        running = self.dispatcher.running.views
        soon = now - self._published_at < _STATE_EVERY_S and running and not last
        if soon or not (self._status_left or self._left):
            return NOTHING
        self._published_at = now
        if self._status_left:
            self._publish_status(condition)
        return self._publish_jobs(running, now + (_LAST_S if last else _AT_ONCE_S if running else _IDLE_S))

    def _publish_status(self, condition: Condition) -> None:
        """Write the status file, before those of the jobs: it is small and may still fit on a full disk."""
        self._status_left = False
        self._waits = {**self.dispatcher.waits(), **self.queue.excluded}
        self.status_file.publish(self.dispatcher, self._waits, condition)
        self._left |= dict.fromkeys(self.queue.jobs)

    def _publish_jobs(self, running: list[RunningView], until: float) -> Change:
        """Publish the jobs that something has happened to, and of the others as many as there is time for."""
        change = NOTHING
        while self._first:
            change |= self._publish_one(next(iter(self._first)), running)
        while self._left and self.clock.monotonic() < until:
            change |= self._publish_one(next(iter(self._left)), running)
        return change

    def _publish_one(self, id: int, running: list[RunningView]) -> Change:
        change = NOTHING
        job = self.queue.jobs.get(id)
        if job is not None and not job.ended:
            change |= self.queue.attempt(id, partial(self._publish_job, job, running))
        if job is not None and job.ended:
            change |= self.queue.attempt(id, partial(self.end_commands.start, job))
            if id in self.queue.jobs:
                self.queue.put_away(job)
                self.stage_times.forget(id)
        self._first.pop(id, None)
        self._left.pop(id, None)
        return change

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
