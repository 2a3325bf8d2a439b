"""The little that the daemon keeps of jobs that have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.daemon.queued_job import QueuedJob
from autotune.errors import StorageError
from autotune.storage.atomic import stamp
from autotune.storage.job_files import read_control
from autotune.storage.job_state import retry_requested
from autotune.storage.paths import JobPaths


class Archive(dict[int, "ArchivedJob"]):
    """The jobs that have ended, by id."""

    def put(self, job: QueuedJob) -> None:
        """Keep what has to be known to notice a retry of a job."""
        self[job.id] = ArchivedJob(job.state.retries_seen)

    def drop_retried(self, jobs: Mapping[int, JobPaths]) -> None:
        """Forget the jobs that are to be retried, so that they are opened again."""
        for id in [id for id, job in self.items() if id in jobs and job.is_to_be_retried(jobs[id])]:
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
