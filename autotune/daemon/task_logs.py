"""The tuning logs that the daemon follows: of each what planning needs, once for all jobs that have its task."""

from __future__ import annotations

import math
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakSet, WeakValueDictionary

from autotune.storage.formats import Trial
from autotune.storage.trial_index import Entry
from autotune.storage.tuning_log import TuningLog

# How many logs are looked at each time, besides those that are known to have grown.
_LOOKED_AT = 200


class Follower:
    """Who goes by tuning logs. `changed` is set when one of them has changed."""

    changed: bool = True


@dataclass(eq=False)
class TaskLog:
    """The trials of one tuning log, without their schedules.

    Attributes:
        path: The log.
        running_best: The best time in microseconds after each trial; infinity before the first success.
        followers: Are told when the log has changed.
    """

    path: Path
    running_best: tuple[float, ...] = ()
    followers: WeakSet[Follower] = field(default_factory=WeakSet)
    _log: TuningLog = field(init=False)
    _stamp: tuple[int, int, int] | None = None
    _last_rounds: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._log = TuningLog(self.path)

    def refresh(self) -> bool:
        """Read the trials that were added. Returns whether there are any, or others than before.

        Raises:
            StorageError: The log cannot be read.
        """
        stamp = self._look()
        if stamp == self._stamp:
            return False
        new = self._log.follow()
        self._stamp = stamp
        if not (new.entries or new.restarted):
            return False
        if new.restarted:
            self._forget()
        self._take_in(new.entries)
        for follower in self.followers:
            follower.changed = True
        return True

    def _look(self) -> tuple[int, int, int] | None:
        """Return a value that changes with the file; None if it cannot be looked at."""
        with suppress(OSError):
            status = os.stat(self.path)
            return status.st_ino, status.st_size, status.st_mtime_ns
        return None

    def _forget(self) -> None:
        self.running_best = ()
        self._last_rounds.clear()

    def _take_in(self, entries: list[Entry]) -> None:
        times = list(self.running_best)
        best = times[-1] if times else math.inf
        for entry in entries:
            if entry.median_us is not None:
                best = min(best, entry.median_us)
            times.append(best)
            self._last_rounds[entry.job_crc32] = max(entry.round, self._last_rounds.get(entry.job_crc32, -1))
        self.running_best = tuple(times)

    def last_trial(self) -> Trial | None:
        """Return the last trial with its schedule; None if there is none. Reads the entries again.

        Raises:
            StorageError: The log cannot be read.
        """
        log = TuningLog(self.path)  # `_log` has to give each entry to `refresh`
        return next(iter(log.trials_of(log.entries()[-1:])), None)

    def last_round(self, job: str) -> int:
        """Return the last round of which the job with this folder has logged a trial; -1 if there is none."""
        return self._last_rounds.get(zlib.crc32(job.encode()), -1)


class TaskLogs:
    """The logs that jobs follow, by path. One that no job follows any more is forgotten."""

    def __init__(self) -> None:
        self._logs: WeakValueDictionary[Path, TaskLog] = WeakValueDictionary()
        self._next: list[Path] = []

    def of(self, path: Path) -> TaskLog:
        """Return the log at a path, the same one to all who ask."""
        log = self._logs.get(path)
        if log is None:
            log = self._logs[path] = TaskLog(path)
        return log

    def due(self) -> list[TaskLog]:
        """Return some of the logs, others each time, until all have had their turn: somebody may have added trials."""
        if not self._next:
            self._next = list(self._logs)
        turn = self._next[:_LOOKED_AT]
        self._next = self._next[_LOOKED_AT:]
        return [log for path in turn if (log := self._logs.get(path)) is not None]
