"""What the confirmation of a job with `--stop-at` found: whether the whole model is as fast as it has to be."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

from autotune.errors import DamagedFile
from autotune.storage import formats
from autotune.storage.atomic import remove
from autotune.storage.paths import JobPaths


@dataclass(frozen=True)
class Confirmation:
    """What the last confirmation of a job found.

    Attributes:
        times_ms: How long a run of the whole model took, in each of some processes.
        estimate_ms: The sum of the best times of the tasks then, each by its weight. Of several sets of shapes the
            slowest counts, here and above.
        at: When it ended.
        failed: Why the whole model could not be timed. Then the rest says nothing, and it is not tried again.
        took_s: How long the confirmation took, in seconds.
    """

    FORMAT = ("autotune-confirmation", 1)

    times_ms: tuple[float, ...]
    estimate_ms: float
    at: float
    failed: str = ""
    took_s: float = 0.0

    @property
    def latency_ms(self) -> float:
        """The median over the processes."""
        return statistics.median(self.times_ms)

    @property
    def slowest_ms(self) -> float:
        """The time of the slowest process."""
        return max(self.times_ms)

    @property
    def ratio(self) -> float:
        """How many times as long as the estimate the whole model took."""
        return self.latency_ms / self.estimate_ms

    def meets(self, stop_at_ms: float) -> bool:
        """Return whether every process was fast enough."""
        return not self.failed and self.slowest_ms <= stop_at_ms


def read_confirmation(paths: JobPaths) -> Confirmation | None:
    """Read what the last confirmation of a job found; None if there was none, or its file is damaged.

    Raises:
        StorageError: The file cannot be read, or a newer autotune wrote it.
    """
    try:
        last = formats.read(Confirmation, paths.confirmed)
    except (FileNotFoundError, DamagedFile):
        return None
    numbers = (*last.times_ms, last.estimate_ms)
    sound = bool(last.times_ms) and all(math.isfinite(value) and value > 0 for value in numbers)
    return last if sound or last.failed else None


def give_up(paths: JobPaths, diagnosis: str) -> Confirmation:
    """Write down that the whole model cannot be timed, so that it is not tried again.

    Raises:
        DiskProblem: The file could not be written.
    """
    failed = Confirmation((), 0.0, time.time(), diagnosis)
    formats.write(paths.confirmed, failed)
    return failed


def forget_failure(paths: JobPaths) -> None:
    """Let a whole model be timed again that could not be timed.

    Raises:
        StorageError: The last confirmation could not be read or removed.
    """
    last = read_confirmation(paths)
    if last is not None and last.failed:
        remove(paths.confirmed)
