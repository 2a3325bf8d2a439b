"""Whether a measurement was disturbed, judged by what the kernel counted meanwhile. Pure: no files and no clocks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.machine.load import Sample


@dataclass(frozen=True)
class Thresholds:
    """From when on a measurement counts as disturbed. All of them stand here, and nowhere else.

    Attributes:
        others: share of the watched CPUs' time that other processes used.
        waited: share of the time for which a thread of ours had no CPU; the kernel counts it to the nanosecond.
        stolen: share of the watched CPUs' time that the machine below took.
        throttled: share of the time for which the container was stopped.
        least_s: seconds below which a share says nothing: counters go in ticks of 10 ms, and each CPU's is rounded.
        clock: share of the clock before, below which it has dropped.
        sentinel: how many times as long as on a quiet machine the sentinel may take.
    """

    others: float = 0.1
    waited: float = 0.05
    stolen: float = 0.05
    throttled: float = 0.02
    least_s: float = 0.03
    clock: float = 0.8
    sentinel: float = 1.3


THRESHOLDS = Thresholds()


@dataclass(frozen=True)
class Quiet:
    """How long the sentinel kernel took, in microseconds, the last times that nothing else disturbed."""

    times_us: tuple[float, ...] = ()

    KEPT = 32

    @property
    def usual_us(self) -> float | None:
        """The median; it follows a machine that has become slower for good. None before there are any."""
        return statistics.median(self.times_us) if self.times_us else None

    def with_time(self, time_us: float) -> Quiet:
        """These and one more, without the oldest."""
        return Quiet((*self.times_us, time_us)[-self.KEPT :])


def disturbance(before: Sample, after: Sample, cpus: int, limits: Thresholds = THRESHOLDS) -> str:
    """What disturbed a measurement between two samples of as many watched CPUs; empty for nothing.

    The reason is the end of a sentence: "other processes used 34% of its CPUs".
    """
    elapsed = after.at - before.at
    if elapsed <= 0:
        return ""
    whole = elapsed * max(1, cpus)
    others = after.busy - before.busy - (after.ours - before.ours)
    stolen, waited = after.stolen - before.stolen, after.waited - before.waited
    throttled = after.throttled - before.throttled
    if throttled > limits.throttled * elapsed:
        return f"its container was stopped for {throttled / elapsed:.0%} of the time (its CPU quota was used up)"
    if stolen > max(limits.stolen * whole, limits.least_s):
        return f"other virtual machines took {stolen / whole:.0%} of its CPUs"
    if others > max(limits.others * whole, limits.least_s):
        return f"other processes used {others / whole:.0%} of its CPUs"
    if waited > limits.waited * elapsed:
        return f"its threads waited for a CPU for {waited / elapsed:.0%} of the time"
    if before.mhz and after.mhz < limits.clock * before.mhz:
        return f"the clock of its CPUs fell from {before.mhz:.0f} to {after.mhz:.0f} MHz"
    return ""


def slowed(sentinel_us: Sequence[float], quiet: Quiet, limits: Thresholds = THRESHOLDS) -> str:
    """Whether the sentinel, timed before and after a measurement, says that the CPU was slower than when it was quiet.

    Slow both times: a single slow one is as likely a chance of its own.
    """
    usual = quiet.usual_us
    if usual is None or not sentinel_us or min(sentinel_us) <= limits.sentinel * usual:
        return ""
    return f"its CPU ran at {usual / min(sentinel_us):.0%} of the speed that it has when quiet"
