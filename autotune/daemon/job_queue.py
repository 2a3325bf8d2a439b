"""The jobs of a workspace as the daemon holds them: those to serve, those that have ended, those it cannot read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from autotune.config import Config
from autotune.daemon.clock import DaemonClock
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.task_logs import TaskLogs
from autotune.errors import DiskProblem, StorageError, disk_problem
from autotune.reasons import Reason
from autotune.storage.atomic import stamp
from autotune.storage.disk_space import stops_everything
from autotune.storage.job_files import read_control
from autotune.storage.job_state import retry_requested
from autotune.storage.paths import JobPaths, Workspace

_LOG = logging.getLogger("autotune.daemon")
_RETRY_UNUSABLE_S = 10.0
_RETRY_BLOCKED_FIRST_S = 1.0
_RETRY_BLOCKED_S = 10.0


@dataclass(frozen=True)
class Change:
    """What a step of the daemon's loop has changed. The steps after it take it in.

    Attributes:
        any: Whether anything is other than before, so that other stages may start and `status` shows something else.
        jobs: The ids of jobs whose states are to be written before those of others, as users wait to see them.
    """

    any: bool = False
    jobs: frozenset[int] = frozenset()

    def __or__(self, other: Change) -> Change:
        if not (self.any and other.any):
            return self if self.any else other
        return Change(True, self.jobs | other.jobs)


NOTHING = Change()
SOMETHING = Change(any=True)


@dataclass(frozen=True)
class Obstacle:
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


class EndedJobs(dict[int, "ArchivedJob"]):
    """The little that is kept of the jobs that have ended, by id."""

    def put(self, job: QueuedJob) -> None:
        """Keep what has to be known to notice a retry of a job."""
        self[job.id] = ArchivedJob(job.state.retries_seen)

    def drop_retried(self, folders: Mapping[int, JobPaths]) -> None:
        """Forget the jobs that are to be retried, so that they are opened again."""
        for id in [id for id, job in self.items() if id in folders and job.is_to_be_retried(folders[id])]:
            del self[id]


@dataclass(slots=True)
class ArchivedJob:
    """How many retries a job has had."""

    retries_seen: int
    _control_seen: tuple[int, int] = (0, 0)

    def is_to_be_retried(self, paths: JobPaths) -> bool:
        """Return whether another retry is requested. Reads the control file only if it has changed."""
        try:
            seen = stamp(paths.control)
        except OSError:
            return False
        if seen == self._control_seen:
            return False
        self._control_seen = seen
        try:
            return retry_requested(read_control(paths), self.retries_seen)
        except StorageError:  # opening the job will report the error
            return True


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
    clock: DaemonClock
    jobs: dict[int, QueuedJob] = field(default_factory=dict)
    archive: EndedJobs = field(default_factory=EndedJobs)
    unusable: dict[int, Reason] = field(default_factory=dict)
    blocked: dict[int, Obstacle] = field(default_factory=dict)
    logs: TaskLogs = field(default_factory=TaskLogs)
    _retry_unusable_at: float = 0.0

    @property
    def startable(self) -> list[QueuedJob]:
        """The jobs of which stages may start now."""
        active = [job for job in self.jobs.values() if job.active]
        if not self.blocked:
            return active
        return [job for job in active if job.id not in self.blocked or self.blocked[job.id].over]

    @property
    def excluded(self) -> dict[int, Reason]:
        """Why jobs do not go on that cannot be served or are blocked, by id."""
        return {**{id: block.reason for id, block in self.blocked.items()}, **self.unusable}

    @property
    def retries_blocked(self) -> bool:
        """Whether a job is blocked that has not been tried again yet."""
        return any(block.tries < 2 for block in self.blocked.values())

    def wants(self, id: int) -> bool:
        """Return whether stages of a job may run on: not if it is cancelled, gone, or its files cannot be used."""
        job = self.jobs.get(id)
        return job is not None and (job.ended or job.control.wanted != "cancel")

    def load(self) -> Change:
        """Open the jobs that are new, to be retried or repaired, and drop those whose folder is gone.

        Raises:
            DiskProblem: The disk refuses what concerns all jobs.
        """
        folders = {paths.id: paths for paths in self.workspace.job_list()}
        change = self._drop_gone(folders)
        self.archive.drop_retried(folders)
        left_out = set(self.unusable)
        if self.clock.monotonic() >= self._retry_unusable_at:  # the files may have been repaired
            left_out.clear()
            self._retry_unusable_at = self.clock.monotonic() + _RETRY_UNUSABLE_S
        order = _SubmissionOrder(self.jobs)
        for id in sorted(folders.keys() - self.jobs.keys() - self.archive.keys() - left_out):
            change |= self.attempt(id, partial(self._open, folders[id], order))
        return change

    def load_repaired(self) -> Change:
        """Try at once to load the jobs with unusable files.

        Raises:
            DiskProblem: As of `load`.
        """
        self._retry_unusable_at = 0.0
        return self.load()

    def _drop_gone(self, folders: Mapping[int, JobPaths]) -> Change:
        gone = (self.jobs.keys() | self.unusable.keys() | self.blocked.keys() | self.archive.keys()) - folders.keys()
        for id in gone:
            self.jobs.pop(id, None)
            self.unusable.pop(id, None)
            self.blocked.pop(id, None)
            self.archive.pop(id, None)
        return Change(bool(gone))

    def _open(self, paths: JobPaths, order: _SubmissionOrder) -> Change:
        job = QueuedJob.open(self.workspace, paths, self.config, self.logs)
        job.enter_queue(order.before(job.id), self.clock.time())
        order.entered(job)
        again = retry_requested(job.control, job.state.retries_seen)
        if job.ended and not again and not job.spec.on_end:  # whose command may have yet to be started
            self.archive.put(job)  # not all of those that have ended are held at once
        else:
            self.jobs[job.id] = job
        self.unusable.pop(job.id, None)
        return SOMETHING

    def obey(self) -> Change:
        """Take in what users have asked for since the last time: to hold, release, cancel or retry jobs.

        Raises:
            DiskProblem: The disk refuses what concerns all jobs.
        """
        change = NOTHING
        for id, job in list(self.jobs.items()):
            change |= self.attempt(id, partial(_obey, job))
        return change

    def attempt(self, id: int, action: Callable[[], Change | None]) -> Change:
        """Do something with the files of a job. If they cannot be used, leave the job out, and say why in `status`.

        Returns:
            What the action has changed, or that the job is left out.

        Raises:
            DiskProblem: The fault concerns all jobs. The job is read again when it has passed.
        """
        try:
            return action() or NOTHING
        except (StorageError, OSError) as fault:
            error = fault if isinstance(fault, StorageError) else disk_problem("use", fault.filename or "a file", fault)
            self.jobs.pop(id, None)
            if isinstance(error, DiskProblem) and stops_everything(error, self.workspace.jobs, self.workspace.logs):
                raise error from fault
            reason = Reason("unusable-files", detail=str(error))
            if self.unusable.get(id) == reason:
                return NOTHING
            _LOG.error("leaving out job %d: %s", id, error)
            self.unusable[id] = reason
            return SOMETHING

    def block(self, job: QueuedJob, detail: str) -> None:
        """Start nothing of this job for a while, for this machine cannot work for it. Then try again."""
        before = self.blocked.get(job.id)
        reason = Reason("unfit-machine", detail=detail)
        if before is not None and not before.over:
            return  # another stage of it said so just now
        if before is None or before.reason != reason:
            _LOG.error("blocking job %d: %s", job.id, detail)
        pause_s = _RETRY_BLOCKED_FIRST_S if before is None else _RETRY_BLOCKED_S
        tries = 1 if before is None else before.tries + 1
        self.blocked[job.id] = Obstacle(reason, self.clock.monotonic() + pause_s, tries)

    def unblock(self, job: QueuedJob) -> None:
        """A stage of this job has done its work."""
        if self.blocked.pop(job.id, None):
            _LOG.info("job %d goes on", job.id)

    def retry_blocked(self) -> Change:
        """Let stages of blocked jobs start whose time has come."""
        change = NOTHING
        for id, block in self.blocked.items():
            if not block.over and self.clock.monotonic() >= block.until:
                self.blocked[id] = replace(block, over=True)
                change = SOMETHING
        return change

    def follow_logs(self) -> None:
        """Read the trials that somebody else may have added to tuning logs: at some of them, others each time."""
        for log in self.logs.due():
            with suppress(StorageError):  # a job that has the task finds out, and is left out
                log.refresh()

    def put_away(self, job: QueuedJob) -> None:
        """Move a job that has ended to the archive."""
        self.blocked.pop(job.id, None)
        self.archive.put(self.jobs.pop(job.id))


def _obey(job: QueuedJob) -> Change:
    if not job.refresh_control():
        return NOTHING
    if job.ended and retry_requested(job.control, job.state.retries_seen):
        job.restart()
    return Change(True, frozenset({job.id}))
