"""The trials of a job's tasks, from the tuning logs that jobs share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autotune.storage.formats import JobSpec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog


@dataclass
class JobTrials:
    """The number and the times of the trials of each task of one job. Tasks are named by their index."""

    workspace: Workspace
    paths: JobPaths
    spec: JobSpec
    _logs: dict[int, TuningLog] = field(init=False)
    _running_best: dict[int, tuple[float, ...]] = field(default_factory=dict)
    _imported: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        folder = self.spec.target_key
        self._logs = {
            task: TuningLog(self.workspace.tuning_log(folder, self.spec.tasks[task].hash).records)
            for task in self.spec.tunable
        }

    def refresh(self, task: int) -> bool:
        """Read the trials added to the log of a task, by this job or another. Returns whether there are any."""
        best, running_best = math.inf, []
        trials = self._logs[task].trials()
        self._imported[task] = sum(trial.imported for trial in trials[self.spec.known_at_submit[task] :])
        for trial in trials:
            best = min(best, trial.median_us) if trial.median_us is not None else best
            running_best.append(best)
        if tuple(running_best) == self.running_best(task):
            return False
        self._running_best[task] = tuple(running_best)
        return True

    def refresh_all(self) -> bool:
        """Read the trials added to the logs of all tasks. Returns whether there are any."""
        return any([self.refresh(task) for task in self._logs])

    def running_best(self, task: int) -> tuple[float, ...]:
        """Return the best time in microseconds after each trial of a task; infinity before the first success."""
        return self._running_best.get(task, ())

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
        return max(0, known - self.spec.known_at_submit[task] - self._imported.get(task, 0))

    @property
    def total(self) -> int:
        """How many trials count towards the job's budget."""
        return sum(self.counted(task) for task in range(len(self.spec.tasks)))

    def next_round(self, task: int) -> int:
        """Return the number of the round after the last of which this job has logged a trial."""
        rounds = [trial.round for trial in self._logs[task].trials() if trial.job == self.paths.folder.name]
        return 1 + max(rounds, default=-1)
