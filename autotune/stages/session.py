"""What a measure stage learns while it times its candidates."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from autotune.machine.disturbance import Quiet
from autotune.stages.guard import save_quiet
from autotune.stages.stage import Stage
from autotune.storage.formats import Trial


@dataclass
class Session:
    """What is known after the candidates that were timed so far.

    Attributes:
        times: Medians of the task's trials, in microseconds.
        quiet: The sentinel's times on this machine without other work.
        checks: Seconds of each verification.
        again: Number of measurements that were repeats.
        failures: What each session on a board said that failed.
        unverified: Why the task's kernels cannot be verified; empty if they can, or are not to be.
    """

    times: list[float]
    quiet: Quiet
    checks: list[float] = field(default_factory=list)
    again: int = 0
    failures: list[str] = field(default_factory=list)
    unverified: str = ""
    _known: Quiet = field(init=False)

    def __post_init__(self) -> None:
        self._known = self.quiet

    def take(self, value: dict[str, Any]) -> None:
        """Add the answer for a candidate that was timed."""
        self.times.append(statistics.median(value["times"]))
        self.checks += [value["checked"]] if value["checked"] else []
        self.again += value["again"]
        if value["sentinel_us"]:
            self.quiet = self.quiet.with_time(round(value["sentinel_us"], 3))

    def save(self, stage: Stage) -> None:
        """Write the sentinel's times for later stages, if they have changed.

        Raises:
            DiskProblem: They could not be written.
        """
        if self.quiet != self._known:
            save_quiet(stage.workspace, self.quiet)

    def summary(self, disturbed: list[Trial]) -> dict[str, Any]:
        """Return what the daemon is told besides the counts. What went wrong is included only where it did."""
        told: dict[str, Any] = {"verified": len(self.checks), "verification": round(sum(self.checks), 3)}
        if self.unverified:
            told["unverified"] = self.unverified
        if self.again:
            told["again"] = self.again
        if self.failures:
            told["sessions_failed"] = self.failures
        if disturbed:
            told |= {"disturbed": len(disturbed), "busy": disturbed[-1].disturbed}
        return told
