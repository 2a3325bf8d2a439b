"""Read the kernel's counters of what happens on some CPUs. They are read before and after a measurement."""

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
