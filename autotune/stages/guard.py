"""A guard for measurements: what was disturbed is measured again, and what cannot be had quietly is marked."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.errors import StorageError
from autotune.machine import sentinel
from autotune.machine.disturbance import Quiet, disturbance, slowed
from autotune.machine.hardware import cpu_model
from autotune.machine.load import Sample, sample, watched
from autotune.storage import formats
from autotune.storage.formats import QuietTimes
from autotune.storage.paths import Workspace

_PAUSE_S = 0.1
_PATIENCE = 2  # candidates in a row that stay disturbed, after which none is measured again in this process


@dataclass(frozen=True)
class Watch:
    """The counters of some CPUs, and the sentinel's time there, before something is measured."""

    cpus: tuple[int, ...]
    quiet: Quiet
    counters: Sample
    sentinel_us: float

    @classmethod
    def begin(cls, cpus: tuple[int, ...], quiet: Quiet) -> Watch:
        """Time the sentinel, then read the counters: it must not count as a disturbance."""
        cpus = watched(cpus)
        return cls(cpus, quiet, sentinel_us=sentinel.time_us(), counters=sample(cpus))

    def end(self) -> tuple[str, float]:
        """What disturbed the measurement, and what the sentinel took where no counter shows anything; else 0."""
        reason = disturbance(self.counters, sample(self.cpus), len(self.cpus))
        if reason:
            return reason, 0.0
        times = (self.sentinel_us, sentinel.time_us())
        return slowed(times, self.quiet), min(times)


@dataclass(frozen=True)
class Guarded:
    """The times of a candidate, how often they were taken again, and what disturbed them even so.

    `sentinel_us` is what the sentinel took beside them, where nothing was seen to disturb it; else 0.
    """

    times: list[float]
    again: int = 0
    disturbed: str = ""
    sentinel_us: float = 0.0


@dataclass
class Guard:
    """Watches the measurements that one process makes on CPUs of its own.

    Attributes:
        repeats: how often a candidate is measured again at most.
        limit_s: seconds for all measurements of a candidate; none is begun that may last longer.
    """

    cpus: tuple[int, ...]
    quiet: Quiet
    repeats: int
    limit_s: float
    pause: Callable[[float], None] = time.sleep
    begin: Callable[[tuple[int, ...], Quiet], Watch] = field(default=Watch.begin)
    _hopeless: int = 0

    def measure(self, once: Callable[[], list[float]]) -> Guarded:
        """Take times until nothing disturbs them, or that is given up; then the best median of all tries counts.

        What disturbs a kernel makes it slower, so the fastest try is the least disturbed one.
        """
        tries: list[Guarded] = []
        started = time.monotonic()
        while True:
            watch = self.begin(self.cpus, self.quiet)
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
    """What the sentinel took on this machine when it was quiet, as far as it is known."""
    try:
        found = formats.read(QuietTimes, workspace.quiet_times)
    except (FileNotFoundError, StorageError):
        return Quiet()
    return Quiet(found.times_us) if found.cpu == cpu_model() else Quiet()


def save_quiet(workspace: Workspace, quiet: Quiet) -> None:
    """Keep it for later stages.

    Raises:
        DiskProblem: it could not be written.
    """
    formats.write(workspace.quiet_times, QuietTimes(cpu_model(), quiet.times_us))
