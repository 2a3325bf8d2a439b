"""The file of what a confirmation found: whether the whole model is as fast as the job has to make it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Confirmation:
    """What the last confirmation of a job's level found.

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

    def meets(self, level_ms: float) -> bool:
        """Return whether every process was fast enough."""
        return not self.failed and self.slowest_ms <= level_ms
