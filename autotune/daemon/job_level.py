"""The level of a job (`submit --stop-at`), and what was found when its whole model was last timed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from autotune.storage import formats
from autotune.storage.atomic import remove
from autotune.storage.confirmation import Confirmation
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import read_confirmation
from autotune.storage.paths import JobPaths


@dataclass
class JobLevel:
    """The level of one job, if it has one. `confirmation` is the last one."""

    paths: JobPaths
    spec: JobSpec
    confirmation: Confirmation | None = None

    def refresh(self) -> None:
        """Read the last confirmation.

        Raises:
            StorageError: It cannot be read, or a newer autotune wrote it.
        """
        self.confirmation = read_confirmation(self.paths) if self.spec.stop_at_ms is not None else None

    @property
    def met(self) -> bool:
        """Whether the whole model was found to be as fast as it has to be."""
        limit = self.spec.stop_at_ms
        return limit is not None and self.confirmation is not None and self.confirmation.meets(limit)

    @property
    def latency_ms(self) -> float | None:
        """How long a run of the whole model took when it met the level; None if it does not."""
        return self.confirmation.latency_ms if self.met and self.confirmation else None

    def give_up(self, diagnosis: str) -> None:
        """Confirm it no more, because the whole model cannot be timed.

        Raises:
            DiskProblem: That could not be written down.
        """
        self.confirmation = Confirmation((), 0.0, time.time(), diagnosis)
        formats.write(self.paths.confirmed, self.confirmation)

    def forget_failure(self) -> None:
        """Let the whole model be timed again.

        Raises:
            StorageError: The last confirmation could not be read or removed.
        """
        self.refresh()
        if self.confirmation is not None and self.confirmation.failed:
            remove(self.paths.confirmed)
