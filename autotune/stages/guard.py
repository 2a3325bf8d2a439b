"""A guard for measurements: repeats those that other work disturbs, and marks those that stay disturbed."""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from autotune.errors import StorageError
from autotune.machine.disturbance import Quiet, Sample, disturbance, sample, slowed, watched
from autotune.machine.gpus import GpuCounters, GpuSample, gpu_disturbance
from autotune.machine.hardware import cpu_model
from autotune.storage import formats
from autotune.storage.formats import QuietTimes
from autotune.storage.paths import Workspace

_PAUSE_S = 0.1
_SENTINEL_DATA = bytes(range(256)) * 1024  # 256 KiB, which fit into the second-level cache
_SENTINEL_RUNS = 8
# After this many candidates in a row that stayed disturbed, this process repeats no measurement.
_PATIENCE = 2


@dataclass(frozen=True)
class Watch:
    """The counters of some CPUs and the time of the sentinel on them, taken before a measurement."""

    cpus: tuple[int, ...]
    quiet: Quiet
    counters: Sample
    sentinel_us: float

    @classmethod
    def begin(cls, cpus: tuple[int, ...], quiet: Quiet) -> Watch:
        """Time the sentinel, then read the counters, so that the sentinel does not count as a disturbance."""
        cpus = watched(cpus)
        return cls(cpus, quiet, sentinel_us=_sentinel_us(), counters=sample(cpus))

    def end(self) -> tuple[str, float]:
        """Return what disturbed the measurement, and the sentinel's time in microseconds.

        The reason is empty where nothing did. The time is 0 where a counter shows a disturbance.
        """
        reason = disturbance(self.counters, sample(self.cpus), len(self.cpus))
        if reason:
            return reason, 0.0
        times = (self.sentinel_us, _sentinel_us())
        return slowed(times, self.quiet), min(times)


class Watching(Protocol):
    """What looks for disturbances while a measurement is made."""

    def end(self) -> tuple[str, float]:
        """Return what `Watch.end` returns."""


@dataclass
class GpuWatcher:
    """Watches the measurements that one process makes on a GPU, through NVML."""

    counters: GpuCounters
    _before: GpuSample | None = None
    _highest_mhz: int = 0

    def begin(self) -> GpuWatcher:
        """Read the GPU's state before a measurement."""
        self._before = self.counters.sample()
        return self

    def end(self) -> tuple[str, float]:
        """Return what disturbed the measurement, if anything did. There is no sentinel on a GPU."""
        after = self.counters.sample()
        before = self._before or after
        self._highest_mhz = max(self._highest_mhz, before.mhz, after.mhz)
        return gpu_disturbance(before, after, self._highest_mhz), 0.0


def _sentinel_us() -> float:
    """Return the shortest time of several runs of a fixed piece of work, in microseconds. Takes half a millisecond.

    A CPU may be slow because of its temperature, because another virtual machine uses the other thread of its core, or
    because the memory bus is busy. No counter shows all of these, but each makes the same work take longer.
    """
    best = float("inf")
    for _ in range(_SENTINEL_RUNS):
        started = time.perf_counter()
        zlib.crc32(_SENTINEL_DATA)
        best = min(best, time.perf_counter() - started)
    return best * 1e6


@dataclass(frozen=True)
class Guarded:
    """The result of a guarded measurement of a candidate.

    Attributes:
        times: In microseconds.
        again: How often the measurement was repeated.
        disturbed: What disturbed the times that were kept; empty where nothing did.
        sentinel_us: The sentinel's time; 0 where a counter shows a disturbance.
    """

    times: list[float]
    again: int = 0
    disturbed: str = ""
    sentinel_us: float = 0.0


class _Unwatched:
    """Stands for a watch where nothing shows a disturbance."""

    def end(self) -> tuple[str, float]:
        """Return that nothing disturbed the measurement."""
        return "", 0.0


@dataclass
class Guard:
    """Watches the measurements that one process makes on a device of its own.

    Attributes:
        begin: Begins to look for disturbances of one measurement.
        repeats: How often the measurement of a candidate is repeated at most.
        limit_s: Seconds for all measurements of a candidate. None is begun that might exceed it.
    """

    begin: Callable[[], Watching]
    repeats: int
    limit_s: float
    pause: Callable[[float], None] = time.sleep
    _hopeless: int = 0

    @classmethod
    def off(cls) -> Guard:
        """Return a guard for a device of which nothing shows what disturbs it: each measurement is made once."""
        return cls(_Unwatched, 0, 0.0)

    def measure(self, once: Callable[[], list[float]]) -> Guarded:
        """Measure until nothing disturbs the times, or until a limit is reached.

        If all tries are disturbed, the one with the lowest median counts: disturbances make a kernel slower, so it is
        the least disturbed one.

        Args:
            once: Takes the times, in microseconds.
        """
        tries: list[Guarded] = []
        started = time.monotonic()
        while True:
            watch = self.begin()
            times = once()
            disturbed, sentinel_us = watch.end()
            tries.append(Guarded(times, len(tries), disturbed, sentinel_us))
            if not disturbed:
                self._hopeless = 0
                return tries[-1]
            spent = time.monotonic() - started
            if len(tries) > self._repeats or spent * (1 + 1 / len(tries)) > self.limit_s:
                break
            self.pause(_PAUSE_S)
        self._hopeless += 1
        best = min(tries, key=lambda item: statistics.median(item.times))
        return Guarded(best.times, len(tries) - 1, best.disturbed, tries[-1].sentinel_us)

    @property
    def _repeats(self) -> int:
        return self.repeats if self._hopeless < _PATIENCE else 0


def load_quiet(workspace: Workspace) -> Quiet:
    """Read the sentinel's times on this machine without other work; empty where they are unknown."""
    try:
        kept = formats.read(QuietTimes, workspace.quiet_times)
    except (FileNotFoundError, StorageError):
        return Quiet()
    return Quiet(kept.times_us) if kept.cpu == cpu_model() else Quiet()


def save_quiet(workspace: Workspace, quiet: Quiet) -> None:
    """Write the sentinel's times for later stages.

    Raises:
        DiskProblem: It could not be written.
    """
    formats.write(workspace.quiet_times, QuietTimes(cpu_model(), quiet.times_us))
