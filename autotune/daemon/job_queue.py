"""The jobs of a workspace as the daemon holds them: those to serve, those that have ended, those it cannot read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autotune.config import Config
from autotune.daemon.archive import Archive
from autotune.daemon.changes import Changes
from autotune.daemon.clock import DaemonClock
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.running import RunningStages
from autotune.errors import DiskProblem, StorageError
from autotune.reasons import Reason
from autotune.storage.job_state import retry_requested
from autotune.storage.paths import Workspace

_LOG = logging.getLogger("autotune.daemon")
_RETRY_UNUSABLE_S = 30.0


@dataclass
class JobQueue:
    """Follows the job folders of a workspace, and what the user wants of each job.

    Attributes:
        jobs: The jobs to serve, by id.
        archive: What is kept of the jobs that have ended, by id.
        unusable: Why the files of the other jobs cannot be used, by id.
    """

    workspace: Workspace
    config: Config
    running: RunningStages
    changes: Changes
    clock: DaemonClock
    jobs: dict[int, QueuedJob] = field(default_factory=dict)
    archive: Archive = field(default_factory=Archive)
    unusable: dict[int, Reason] = field(default_factory=dict)
    _retry_unusable_at: float = 0.0

    @property
    def active(self) -> list[QueuedJob]:
        """The jobs of which stages may start."""
        return [job for job in self.jobs.values() if job.active]

    def load(self) -> None:
        """Open jobs that are new, drop those whose folder is gone."""
        found = {paths.id: paths for paths in self.workspace.job_list()}
        for known in (self.jobs, self.unusable, self.archive):
            for id in set(known) - set(found):
                del known[id]
                self.changes.note()
        self.archive.drop_retried(found)
        kept = set(self.unusable)
        if self.clock.monotonic() >= self._retry_unusable_at:  # the files may have been repaired
            kept, self._retry_unusable_at = set(), self.clock.monotonic() + _RETRY_UNUSABLE_S
        for id in sorted(set(found) - set(self.jobs) - set(self.archive) - kept):
            with self.skipping_unusable(id):
                job = QueuedJob.open(self.workspace, found[id], self.config)
                job.enter_queue(self.jobs.values(), self.clock.time())
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
            DiskProblem: The fault is the disk's and may pass. The job is read again then.
        """
        try:
            yield
        except (StorageError, FileNotFoundError) as error:
            self.jobs.pop(id, None)
            if isinstance(error, DiskProblem) and error.passing:
                raise
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
                if job.ended and retry_requested(job.control, job.state.retries_seen):
                    job.restart()
                if job.requested == "cancelled" and not job.ended:
                    self.running.kill(id)

    def follow_logs(self) -> None:
        """Read the trials that were added to tuning logs. Jobs share them."""
        for job in self.active:
            with self.skipping_unusable(job.id):
                job.follow_logs()

    def put_away(self, job: QueuedJob) -> None:
        """Move a job that has ended to the archive."""
        self.archive.put(self.jobs.pop(job.id))
