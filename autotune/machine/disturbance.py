"""Decide from the counters of the kernel whether a measurement was disturbed. Reads no file and no clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.machine.load import Sample


@dataclass(frozen=True)
class Thresholds:
    """The limits above which a measurement counts as disturbed.

    Attributes:
        others: The fraction of the watched CPUs' time that other processes may use.
        waited: The fraction of the time that this process's threads may wait for a CPU. It is counted in nanoseconds.
        stolen: The fraction of the watched CPUs' time that the hypervisor may take.
        throttled: The fraction of the time that the container may be stopped.
        least_s: CPU seconds that are ignored in any case, because CPU time is counted in ticks of 10 ms on each CPU.
        clock: The fraction of its frequency before that the clock must keep.
        sentinel: How many times as long as on a quiet machine the sentinel may take.
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
    """The latest times of the sentinel in undisturbed measurements.

    Attributes:
        times_us: The times in microseconds, the oldest first.
    """

    times_us: tuple[float, ...] = ()

    KEPT = 32

    @property
    def usual_us(self) -> float | None:
        """The median time in microseconds; None if there is none. It adapts if the machine becomes slower for good."""
        return statistics.median(self.times_us) if self.times_us else None

    def with_time(self, time_us: float) -> Quiet:
        """Return these times and a new one, without the oldest if there are too many."""
        return Quiet((*self.times_us, time_us)[-self.KEPT :])


def disturbance(before: Sample, after: Sample, cpus: int, limits: Thresholds = THRESHOLDS) -> str:
    """Return what disturbed a measurement, such as "other processes used 34% of its CPUs"; empty if nothing did.

    Args:
        before: The counters before the measurement.
        after: The counters after it.
        cpus: How many CPUs were watched.
        limits: The limits.
    """
    elapsed = after.at - before.at
    if elapsed <= 0:
        return ""
    whole = elapsed * max(1, cpus)
    others = after.busy - before.busy - (after.ours - before.ours)
    stolen = after.stolen - before.stolen
    waited = after.waited - before.waited
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
    """Return how slow the CPU was according to the sentinel; empty if it was as fast as on a quiet machine.

    All times of the sentinel must be slow, because a single slow time may be chance.

    Args:
        sentinel_us: The times of the sentinel before and after the measurement, in microseconds.
        quiet: The times of the sentinel in undisturbed measurements.
        limits: The limits.
    """
    usual = quiet.usual_us
    if usual is None or not sentinel_us or min(sentinel_us) <= limits.sentinel * usual:
        return ""
    return f"its CPU ran at {usual / min(sentinel_us):.0%} of the speed that it has when quiet"
