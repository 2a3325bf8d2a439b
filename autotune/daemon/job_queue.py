"""The jobs of a workspace, as the daemon holds them: those to serve, those that have ended, those left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from autotune.config import Config
from autotune.daemon.archive import Archive
from autotune.daemon.changes import Changes
from autotune.daemon.clock import DaemonClock
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.running import RunningStages
from autotune.errors import DiskProblem, StorageError
from autotune.storage.formats import BLOCKED
from autotune.storage.paths import Workspace

_LOG = logging.getLogger("autotune.daemon")
_LEFT_OUT_AGAIN_S = 30.0
_BLOCKED_FIRST_S, _BLOCKED_AGAIN_S = 1.0, 10.0


@dataclass(frozen=True)
class Block:
    """Why this machine cannot work for a job as it is set up now, when that is tried again, and how often it was."""

    reason: str
    until: float
    tries: int
    over: bool = False  # it is being tried again


@dataclass
class JobQueue:
    """Follows the job folders of a workspace, and what the user wants of each job.

    `jobs` are those to serve, `archive` what is kept of those that have ended, and `left_out` says why the files of
    a job cannot be used. `blocked` are jobs whose last stage found that this machine cannot work for them. Each by
    the job's id.
    """

    workspace: Workspace
    config: Config
    running: RunningStages
    changes: Changes
    clock: DaemonClock
    jobs: dict[int, QueuedJob] = field(default_factory=dict)
    archive: Archive = field(default_factory=Archive)
    left_out: dict[int, str] = field(default_factory=dict)
    blocked: dict[int, Block] = field(default_factory=dict)
    _look_again_at: float = 0.0

    @property
    def active(self) -> list[QueuedJob]:
        """The jobs that are neither held nor ended."""
        return [job for job in self.jobs.values() if job.active]

    @property
    def startable(self) -> list[QueuedJob]:
        """The jobs of which stages may start now."""
        return [job for job in self.active if job.id not in self.blocked or self.blocked[job.id].over]

    @property
    def hopeful(self) -> bool:
        """Whether a job is blocked that has not been tried again yet."""
        return any(block.tries < 2 for block in self.blocked.values())

    @property
    def excluded(self) -> dict[int, str]:
        """Why jobs do not go on that are left out or blocked."""
        return {**{id: f"{BLOCKED}{block.reason}" for id, block in self.blocked.items()}, **self.left_out}

    def block(self, job: QueuedJob, reason: str) -> None:
        """Start nothing of this job for a while, for this machine cannot work for it; then try again."""
        before = self.blocked.get(job.id)
        if before is not None and not before.over:
            return  # another stage of it said so just now
        if before is None or before.reason != reason:
            _LOG.error("blocking job %d: %s", job.id, reason)
        pause_s = _BLOCKED_FIRST_S if before is None else _BLOCKED_AGAIN_S
        tries = 1 if before is None else before.tries + 1
        self.blocked[job.id] = Block(reason, self.clock.monotonic() + pause_s, tries)

    def try_blocked(self) -> None:
        """Let stages of blocked jobs start whose time has come."""
        for id, block in self.blocked.items():
            if not block.over and self.clock.monotonic() >= block.until:
                self.blocked[id] = replace(block, over=True)
                self.changes.note()

    def unblock(self, job: QueuedJob) -> None:
        """A stage of this job has done its work."""
        if self.blocked.pop(job.id, None):
            _LOG.info("job %d goes on", job.id)

    def load(self) -> None:
        """Open jobs that are new, drop those whose folder is gone."""
        found = {paths.id: paths for paths in self.workspace.job_list()}
        for known in (self.jobs, self.left_out, self.blocked, self.archive):
            for id in set(known) - set(found):
                del known[id]
                self.changes.note()
        self.archive.take_retried(found)
        kept = set(self.left_out)
        if self.clock.monotonic() >= self._look_again_at:  # a job that was left out may have been mended
            kept, self._look_again_at = set(), self.clock.monotonic() + _LEFT_OUT_AGAIN_S
        for id in sorted(set(found) - set(self.jobs) - set(self.archive) - kept):
            with self.leaving_out(id):
                job = QueuedJob.open(self.workspace, found[id], self.config)
                job.enter(self.jobs.values(), self.clock.time())
                self.jobs[id] = job
                self.left_out.pop(id, None)
                self.changes.note()

    def load_mended(self) -> bool:
        """Try at once to load the jobs that were left out. Returns whether one of them goes on."""
        before, self._look_again_at = set(self.left_out), 0.0
        self.load()
        return bool(before - set(self.left_out))

    @contextmanager
    def leaving_out(self, id: int) -> Iterator[None]:
        """Leave a job out whose files cannot be used; `status` says why, and the others go on.

        Raises:
            DiskProblem: the disk is at fault, not the job, which is read again when that is over.
        """
        try:
            yield
        except (StorageError, FileNotFoundError) as error:
            self.jobs.pop(id, None)
            if isinstance(error, DiskProblem) and error.passing:
                raise
            if self.left_out.get(id) != (reason := f"cannot go on: {error}"):
                _LOG.error("leaving out job %d: %s", id, error)
                self.changes.note()
            self.left_out[id] = reason
            self.running.kill(id)

    def obey(self) -> None:
        """Take in what the user wants of each job since the last tick."""
        for id, job in list(self.jobs.items()):
            with self.leaving_out(id):
                if not job.obey():
                    continue
                self.changes.note()
                if job.ended and job.control.retries > job.state.retries_seen:
                    job.restart()
                if job.control.wanted == "cancel" and not job.ended:
                    self.running.kill(id)

    def follow_logs(self) -> None:
        """Take in the trials that were added to tuning logs; jobs share them."""
        for job in self.active:
            with self.leaving_out(job.id):
                job.follow_logs()

    def put_away(self, job: QueuedJob) -> None:
        """Move a job that has ended to the archive."""
        self.blocked.pop(job.id, None)
        self.archive.put(self.jobs.pop(job.id))
