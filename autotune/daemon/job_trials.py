"""The trials of a job's tasks, from the tuning logs that jobs share."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field

from autotune.daemon.task_logs import Follower, TaskLog, TaskLogs
from autotune.errors import StorageError
from autotune.storage.formats import JobSpec
from autotune.storage.paths import JobPaths, Workspace


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
