"""The jobs of a workspace as the daemon holds them: those to serve, those that have ended, those it cannot read."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from autotune.config import Config
from autotune.daemon.archive import Archive
from autotune.daemon.changes import Changes
from autotune.daemon.clock import DaemonClock
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.running import RunningStages
from autotune.daemon.task_logs import TaskLogs
from autotune.errors import DiskProblem, StorageError, disk_problem
from autotune.reasons import Reason
from autotune.storage.job_state import retry_requested
from autotune.storage.paths import Workspace
from autotune.storage.room import stops_everything

_LOG = logging.getLogger("autotune.daemon")
_RETRY_UNUSABLE_S = 10.0
_RETRY_BLOCKED_FIRST_S, _RETRY_BLOCKED_S = 1.0, 10.0


@dataclass(frozen=True)
class Block:
    """Why this machine cannot work for a job as it is set up now.

    Attributes:
        reason: What its last stage said.
        until: When a stage of it is started again, in monotonic seconds.
        tries: How many stages said so.
        over: Whether stages of it may start again.
    """

    reason: Reason
    until: float
    tries: int
    over: bool = False


class _SubmissionOrder:
    """Which jobs a new one has to come after. It need not look at all of them where the new one has the highest id."""

    def __init__(self, jobs: Mapping[int, QueuedJob]) -> None:
        self._jobs = jobs
        self._highest = max(jobs, default=0)
        self._latest = max(jobs.values(), key=lambda job: job.submitted_at, default=None)

    def before(self, id: int) -> Collection[QueuedJob]:
        """Return jobs among which is the latest of those with a lower id."""
        if id < self._highest or self._latest is None:
            return self._jobs.values()
        return [self._latest]

    def entered(self, job: QueuedJob) -> None:
        """Take note of a job that has its place."""
        self._highest = max(self._highest, job.id)
        if self._latest is None or job.submitted_at >= self._latest.submitted_at:
            self._latest = job


@dataclass
class JobQueue:
    """Follows the job folders of a workspace, and what the user wants of each job.

    Attributes:
        jobs: The jobs to serve, by id.
        archive: What is kept of the jobs that have ended, by id.
        unusable: Why the files of the other jobs cannot be used, by id.
        blocked: The jobs of `jobs` that this machine cannot work for, by id.
        logs: The tuning logs of the jobs to serve.
    """

    workspace: Workspace
    config: Config
    running: RunningStages
    changes: Changes
    clock: DaemonClock
    jobs: dict[int, QueuedJob] = field(default_factory=dict)
    archive: Archive = field(default_factory=Archive)
    unusable: dict[int, Reason] = field(default_factory=dict)
    blocked: dict[int, Block] = field(default_factory=dict)
    logs: TaskLogs = field(default_factory=TaskLogs)
    _retry_unusable_at: float = 0.0

    @property
    def active(self) -> list[QueuedJob]:
        """The jobs of which stages may start."""
        return [job for job in self.jobs.values() if job.active]

    @property
    def startable(self) -> list[QueuedJob]:
        """The jobs of which stages may start now."""
        if not self.blocked:
            return self.active
        return [job for job in self.active if job.id not in self.blocked or self.blocked[job.id].over]

    @property
    def excluded(self) -> dict[int, Reason]:
        """Why jobs do not go on that cannot be served or are blocked, by id."""
        return {**{id: block.reason for id, block in self.blocked.items()}, **self.unusable}

    @property
    def retries_blocked(self) -> bool:
        """Whether a job is blocked that has not been tried again yet."""
        return any(block.tries < 2 for block in self.blocked.values())

    def block(self, job: QueuedJob, detail: str) -> None:
        """Start nothing of this job for a while, for this machine cannot work for it. Then try again."""
        before, reason = self.blocked.get(job.id), Reason("unfit-machine", detail=detail)
        if before is not None and not before.over:
            return  # another stage of it said so just now
        if before is None or before.reason != reason:
            _LOG.error("blocking job %d: %s", job.id, detail)
        pause_s = _RETRY_BLOCKED_FIRST_S if before is None else _RETRY_BLOCKED_S
        tries = 1 if before is None else before.tries + 1
        self.blocked[job.id] = Block(reason, self.clock.monotonic() + pause_s, tries)

    def unblock(self, job: QueuedJob) -> None:
        """A stage of this job has done its work."""
        if self.blocked.pop(job.id, None):
            _LOG.info("job %d goes on", job.id)

    def retry_blocked(self) -> None:
        """Let stages of blocked jobs start whose time has come."""
        for id, block in self.blocked.items():
            if not block.over and self.clock.monotonic() >= block.until:
                self.blocked[id] = replace(block, over=True)
                self.changes.note()

    def load(self) -> None:
        """Open jobs that are new, drop those whose folder is gone."""
        found = {paths.id: paths for paths in self.workspace.job_list()}
        for known in (self.jobs, self.unusable, self.blocked, self.archive):
            for id in set(known) - set(found):
                del known[id]
                self.running.kill(id)  # `clean` may come before the daemon has seen the `cancel`
                self.changes.note()
        self.archive.drop_retried(found)
        kept = set(self.unusable)
        if self.clock.monotonic() >= self._retry_unusable_at:  # the files may have been repaired
            kept, self._retry_unusable_at = set(), self.clock.monotonic() + _RETRY_UNUSABLE_S
        order = _SubmissionOrder(self.jobs)
        for id in sorted(set(found) - set(self.jobs) - set(self.archive) - kept):
            with self.skipping_unusable(id):
                job = QueuedJob.open(self.workspace, found[id], self.config, self.logs)
                job.enter_queue(order.before(id), self.clock.time())
                order.entered(job)
                again = retry_requested(job.control, job.state.retries_seen)
                if job.ended and not again and not job.spec.on_end:  # whose command may have yet to be started
                    self.archive.put(job)  # not all of those that have ended are held at once
                else:
                    self.jobs[id] = job
                self.unusable.pop(id, None)
                self.changes.note()

    def load_repaired(self) -> bool:
        """Try at once to load the jobs with unusable files. Returns whether one of them can be served now."""
        before, self._retry_unusable_at = set(self.unusable), 0.0
        self.load()
        return bool(before - set(self.unusable))

    @contextmanager
    def skipping_unusable(self, id: int) -> Iterator[None]:
        """Serve a job no further if its files cannot be used. `status` says why, and the other jobs go on.

        Raises:
            DiskProblem: The fault concerns all jobs. The job is read again when it has passed.
        """
        try:
            yield
        except (StorageError, OSError) as fault:
            error = fault if isinstance(fault, StorageError) else disk_problem("use", fault.filename or "a file", fault)
            self.jobs.pop(id, None)
            if isinstance(error, DiskProblem) and stops_everything(error, self.workspace.jobs, self.workspace.logs):
                raise error from fault
            if self.unusable.get(id) != (reason := Reason("unusable-files", detail=str(error))):
                _LOG.error("leaving out job %d: %s", id, error)
                self.changes.note()
            self.unusable[id] = reason
            self.running.kill(id)

    def apply_controls(self) -> None:
        """Apply what the user has asked for since the last tick: hold, cancel or retry jobs."""
        for id, job in list(self.jobs.items()):
            with self.skipping_unusable(id):
                if not job.refresh_control():
                    continue
                self.changes.note()
                self.changes.jobs.add(id)
                if job.ended and retry_requested(job.control, job.state.retries_seen):
                    job.restart()
                if job.control.wanted == "cancel" and not job.ended:
                    self.running.kill(id)

    def follow_logs(self) -> None:
        """Read the trials that somebody else may have added to tuning logs: at some of them, others each time."""
        for log in self.logs.due():
            with suppress(StorageError):  # a job that has the task finds out, and is left out
                log.refresh()

    def put_away(self, job: QueuedJob) -> None:
        """Move a job that has ended to the archive."""
        self.blocked.pop(job.id, None)
        self.archive.put(self.jobs.pop(job.id))
