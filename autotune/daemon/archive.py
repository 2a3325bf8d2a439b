"""Jobs that have ended: what the daemon keeps of them, which is next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.daemon.queued_job import QueuedJob
from autotune.errors import StorageError
from autotune.storage.atomic import stamp
from autotune.storage.job_files import read_control
from autotune.storage.paths import JobPaths


class Archive(dict[int, "Archived"]):
    """The jobs that have ended, by id."""

    def put(self, job: QueuedJob) -> None:
        """Keep of this job what a retry needs."""
        self[job.id] = Archived(job.state.retries_seen)

    def take_retried(self, found: Mapping[int, JobPaths]) -> None:
        """Give up those of the jobs found that are to go on: whoever looks for jobs will find them new."""
        for id in [id for id, job in self.items() if id in found and job.wanted_again(found[id])]:
            del self[id]


@dataclass(slots=True)
class Archived:
    """How many retries a job has had, to notice that one more is asked for."""

    retries_seen: int
    _control_seen: tuple[int, int] = (0, 0)

    def wanted_again(self, paths: JobPaths) -> bool:
        """Whether a retry was asked for since. The control file is read only if it has changed."""
        try:
            seen = stamp(paths.control)
        except OSError:
            return False
        if seen == self._control_seen:
            return False
        self._control_seen = seen
        try:
            return read_control(paths).retries > self.retries_seen
        except StorageError:  # who opens the job will say what is wrong with it
            return True
