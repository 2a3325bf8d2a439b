"""The tuning logs that the daemon follows, each once for all jobs that have its task, and the trials of one job."""

from __future__ import annotations

import math
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakSet, WeakValueDictionary

from autotune.errors import StorageError
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.trial_index import IndexEntry
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

    def _take_in(self, entries: list[IndexEntry]) -> None:
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


@dataclass(eq=False)
class JobTrials(Follower):
    """The number and the times of the trials of each task of one job. Tasks are named by their index.

    Attributes:
        logs: The logs that the daemon follows, for all of its jobs.
        forgiven: The trials of each task, the first since the job was submitted, that do not count; see `Control`.
    """

    workspace: Workspace
    paths: JobPaths
    spec: JobSpec
    logs: TaskLogs = field(default_factory=TaskLogs)
    forgiven: tuple[int, ...] = ()
    _logs: dict[int, TaskLog] = field(init=False)

    def __post_init__(self) -> None:
        paths = {
            task: self.workspace.tuning_log(self.spec.target_key, self.spec.tasks[task].hash)
            for task in self.spec.tunable
        }
        self._logs = {task: self.logs.of(log_paths.records) for task, log_paths in paths.items()}
        for log in self._logs.values():
            log.followers.add(self)

    def refresh(self, task: int) -> None:
        """Read the trials added to the log of a task, by this job or another."""
        self._logs[task].refresh()

    def refresh_all(self) -> None:
        """Read the trials added to the logs of all tasks."""
        for log in self._logs.values():
            log.refresh()

    def running_best(self, task: int) -> tuple[float, ...]:
        """Return the best time in microseconds after each trial of a task; infinity before the first success.

        Those that are forgiven are left out, for they say nothing of what others would gain.
        """
        times = self._all(task)
        forgiven = self._forgiven(task)
        return times[self._before(task) + forgiven :] if forgiven else times

    def _all(self, task: int) -> tuple[float, ...]:
        return self._logs[task].running_best if task in self._logs else ()

    def _forgiven(self, task: int) -> int:
        return self.forgiven[task] if task < len(self.forgiven) else 0

    def _before(self, task: int) -> int:
        """Return how many trials were known before those that count."""
        return self.spec.known_at_submit[task] if self.spec.fresh else 0

    def best_us(self, task: int) -> float | None:
        """Return the best time of a task in microseconds; None before the first success."""
        times = self._all(task)
        return round(times[-1], 4) if times and math.isfinite(times[-1]) else None

    def counted(self, task: int) -> int:
        """Return how many trials of a task count towards the job's budget.

        Of a fresh job these are the trials measured since it was submitted.
        """
        return max(0, len(self._all(task)) - self._before(task) - self._forgiven(task))

    @property
    def all_failed(self) -> bool:
        """Whether there are tasks to tune, and none of them has a time."""
        return bool(self.spec.tunable) and all(self.best_us(task) is None for task in self.spec.tunable)

    def last_failure(self) -> str:
        """Return how the latest trial failed; empty if it has not, or its log cannot be read."""
        with suppress(StorageError):
            trials = [trial for log in self._logs.values() if (trial := log.last_trial()) is not None]
            latest = max(trials, key=lambda trial: trial.at, default=None)
            if latest is not None and latest.failure:
                return f"{latest.failure.stage}: {latest.failure.reason}"
        return ""

    @property
    def total(self) -> int:
        """How many trials count towards the job's budget."""
        return sum(self.counted(task) for task in range(len(self.spec.tasks)))

    def next_round(self, task: int) -> int:
        """Return the number of the round after the last of which this job has logged a trial."""
        self._logs[task].refresh()
        return 1 + self._logs[task].last_round(self.paths.folder.name)
