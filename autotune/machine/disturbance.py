"""Decide whether a measurement was disturbed, from the kernel's counters of what happens on its CPUs.

They are read before and after the measurement.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.machine.cgroups import ROOT, throttled_s
from autotune.machine.hardware import topology

_TICK_S = 1 / (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
# Columns of /proc/stat: user (with guests), nice, system, irq and softirq; and what the hypervisor took.
_BUSY = (0, 1, 2, 5, 6)
_STEAL = 7


@dataclass(frozen=True)
class Sample:
    """The counters at one moment. All are in seconds and never decrease, except for the clock frequency.

    Attributes:
        at: The time on a monotonic clock.
        busy: The CPU time that all processes used on the watched CPUs, in steps of a tick, which is mostly 10 ms.
        ours: The CPU time that this process used.
        waited: For how long threads of this process were ready to run but had no CPU.
        stolen: The CPU time that the hypervisor gave to other virtual machines.
        throttled: For how long processes of this container were stopped because its CPU time was used up.
        mhz: The mean clock frequency of the CPUs in MHz; 0 if it is not known.
    """

    at: float
    busy: float
    ours: float
    waited: float
    stolen: float
    throttled: float
    mhz: float


def watched(cpus: Collection[int], root: Path = ROOT) -> tuple[int, ...]:
    """Return the CPUs on which other work disturbs work on `cpus`: themselves and the other threads of their cores."""
    return tuple(sorted({number for cpu in topology(tuple(sorted(cpus)), root) for number in cpu.core}))


def sample(cpus: Collection[int], root: Path = ROOT) -> Sample:
    """Read the counters of this process on these CPUs. A counter that the system does not have is zero."""
    busy, stolen = _used(cpus, root)
    return Sample(
        at=time.monotonic(),
        busy=busy,
        ours=time.process_time(),
        waited=_waited(root),
        stolen=stolen,
        throttled=throttled_s(root),
        mhz=_mhz(cpus, root),
    )


def _used(cpus: Collection[int], root: Path) -> tuple[float, float]:
    """Return the seconds used on these CPUs and the seconds stolen from them."""
    names = {f"cpu{number}" for number in cpus}
    busy = 0
    stolen = 0
    for line in _lines(root / "proc/stat"):
        name, *counts = line.split()
        if not name.startswith("cpu"):
            break  # the line of the interrupts, which follows, is long
        if name in names:
            busy += sum(int(counts[index]) for index in _BUSY)
            stolen += int(counts[_STEAL]) if len(counts) > _STEAL else 0
    return busy * _TICK_S, stolen * _TICK_S


def _waited(root: Path) -> float:
    """Return for how many seconds threads waited for a CPU. The scheduler counts nanoseconds for each thread."""
    total = 0
    for file in (root / "proc/self/task").glob("*/schedstat"):
        fields = next(_lines(file), "").split()
        total += int(fields[1]) if len(fields) == 3 else 0
    return total / 1e9


def _mhz(cpus: Collection[int], root: Path) -> float:
    files = [root / f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq" for number in cpus]
    rates = [int(text) / 1e3 for file in files if (text := next(_lines(file), "").strip()).isdigit()]
    return sum(rates) / len(rates) if rates else 0.0


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open() as lines:
            yield from lines
    except OSError:
        return


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


def disturbance(before: Sample, after: Sample, cpus: int) -> str:
    """Return what disturbed a measurement, such as "other processes used 34% of its CPUs"; empty if nothing did.

    Args:
        before: The counters before the measurement.
        after: The counters after it.
        cpus: How many CPUs were watched.
    """
    elapsed = after.at - before.at
    if elapsed <= 0:
        return ""
    whole = elapsed * max(1, cpus)
    others = after.busy - before.busy - (after.ours - before.ours)
    stolen = after.stolen - before.stolen
    waited = after.waited - before.waited
    throttled = after.throttled - before.throttled
    if throttled > THRESHOLDS.throttled * elapsed:
        return f"its container was stopped for {throttled / elapsed:.0%} of the time (its CPU quota was used up)"
    if stolen > max(THRESHOLDS.stolen * whole, THRESHOLDS.least_s):
        return f"other virtual machines took {stolen / whole:.0%} of its CPUs"
    if others > max(THRESHOLDS.others * whole, THRESHOLDS.least_s):
        return f"other processes used {others / whole:.0%} of its CPUs"
    if waited > THRESHOLDS.waited * elapsed:
        return f"its threads waited for a CPU for {waited / elapsed:.0%} of the time"
    if before.mhz and after.mhz < THRESHOLDS.clock * before.mhz:
        return f"the clock of its CPUs fell from {before.mhz:.0f} to {after.mhz:.0f} MHz"
    return ""


def slowed(sentinel_us: Sequence[float], quiet: Quiet) -> str:
    """Return how slow the CPU was according to the sentinel; empty if it was as fast as on a quiet machine.

    All times of the sentinel must be slow, because a single slow time may be chance.

    Args:
        sentinel_us: The times of the sentinel before and after the measurement, in microseconds.
        quiet: The times of the sentinel in undisturbed measurements.
    """
    usual = quiet.usual_us
    if usual is None or not sentinel_us or min(sentinel_us) <= THRESHOLDS.sentinel * usual:
        return ""
    return f"its CPU ran at {usual / min(sentinel_us):.0%} of the speed that it has when quiet"
