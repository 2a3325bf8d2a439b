"""The trials of a job's tasks, from the tuning logs that jobs share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autotune.daemon.task_logs import Follower, TaskLog, TaskLogs
from autotune.storage.formats import JobSpec
from autotune.storage.paths import JobPaths, Workspace


@dataclass(eq=False)
class JobTrials(Follower):
    """The number and the times of the trials of each task of one job. Tasks are named by their index.

    `logs` are those that the daemon follows, for all of its jobs.
    """

    workspace: Workspace
    paths: JobPaths
    spec: JobSpec
    logs: TaskLogs = field(default_factory=TaskLogs)
    _logs: dict[int, TaskLog] = field(init=False)

    def __post_init__(self) -> None:
        folder, tasks = self.spec.target_key, self.spec.tasks
        self._logs = {
            task: self.logs.of(self.workspace.tuning_log(folder, tasks[task].hash).records)
            for task in self.spec.tunable
        }
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
        """Return the best time in microseconds after each trial of a task; infinity before the first success."""
        return self._logs[task].running_best if task in self._logs else ()

    def best_us(self, task: int) -> float | None:
        """Return the best time of a task in microseconds; None before the first success."""
        times = self.running_best(task)
        return round(times[-1], 4) if times and math.isfinite(times[-1]) else None

    def counted(self, task: int) -> int:
        """Return how many trials of a task count towards the job's budget.

        Of a fresh job these are the trials measured since it was submitted, but not those imported since.
        """
        known = len(self.running_best(task))
        if not self.spec.fresh:
            return known
        before = self.spec.known_at_submit[task]
        imported = self._logs[task].imported_since(before) if task in self._logs else 0
        return max(0, known - before - imported)

    @property
    def total(self) -> int:
        """How many trials count towards the job's budget."""
        return sum(self.counted(task) for task in range(len(self.spec.tasks)))

    def next_round(self, task: int) -> int:
        """Return the number of the round after the last of which this job has logged a trial."""
        self._logs[task].refresh()
        return 1 + self._logs[task].last_round(self.paths.folder.name)
