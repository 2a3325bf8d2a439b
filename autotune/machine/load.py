"""What happened on some CPUs, as counted by the kernel: read before and after a measurement, and compared."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.machine.cgroups import throttled_s
from autotune.machine.topology import topology

ROOT = Path("/")
_TICK_S = 1 / (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
_BUSY, _STEAL = (0, 1, 2, 5, 6), 7  # user, nice, system, irq, softirq; guests are in user


@dataclass(frozen=True)
class Sample:
    """Counters at one moment, in seconds, all of which only grow, and the clock.

    Attributes:
        at: when, on a monotonic clock.
        busy: CPU time that was used on the watched CPUs, by anyone; in steps of a tick, mostly 10 ms.
        ours: CPU time that this process used.
        waited: how long threads of this process were ready to run and did not.
        stolen: CPU time that the machine below this virtual one gave to others.
        throttled: how long processes of this container were stopped because its CPU time was used up.
        mhz: the mean clock of the CPUs; 0 where it is not known.
    """

    at: float
    busy: float
    ours: float
    waited: float
    stolen: float
    throttled: float
    mhz: float


def watched(cpus: Collection[int], root: Path = ROOT) -> tuple[int, ...]:
    """The CPUs on which other work disturbs work on these: themselves, and the other threads of their cores."""
    return tuple(sorted({number for cpu in topology(tuple(sorted(cpus)), root) for number in cpu.core}))


def sample(cpus: Collection[int], root: Path = ROOT) -> Sample:
    """The counters now, for this process on these CPUs. What the system does not count is zero."""
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
    """Seconds used on these CPUs, and seconds stolen from them."""
    names, busy, stolen = {f"cpu{number}" for number in cpus}, 0, 0
    for line in _lines(root / "proc/stat"):
        name, *counts = line.split()
        if not name.startswith("cpu"):
            break  # the interrupts that follow fill a long line
        if name in names:
            busy += sum(int(counts[index]) for index in _BUSY)
            stolen += int(counts[_STEAL]) if len(counts) > _STEAL else 0
    return busy * _TICK_S, stolen * _TICK_S


def _waited(root: Path) -> float:
    """Seconds, from the nanoseconds that the scheduler keeps for each thread."""
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
