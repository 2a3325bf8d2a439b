"""What the trials of a job say: how the latency fell, what failed, and what more trials would bring."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.commands.wall_time import Times
from autotune.metric import Metric
from autotune.planning.latency import Curve, Forecast, forecast, tasks_sum_ms
from autotune.storage.formats import KINDS, JobSpec, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.trial_index import IndexEntry
from autotune.storage.tuning_log import TuningLog

_HOUR_S = 3600.0
# Below this share of the latency, another hour is not worth it.
_WORTH = 0.01


@dataclass(frozen=True)
class LatencyPoint:
    """The latency of the model after a trial: the sum of the best times of its tasks, each by its weight.

    Attributes:
        seconds: When, in seconds since the submission; 0 for trials that were known by then.
        trials: How many trials of the job there were by then.
        latency_ms: The latency in milliseconds.
    """

    seconds: float
    trials: int
    latency_ms: float


@dataclass(frozen=True)
class BestPoint:
    """The best time of a task after so many trials of it, in microseconds."""

    trials: int
    best_us: float


@dataclass(frozen=True)
class FailureCount:
    """How many trials failed in a stage in one way. `example` is the reason of the latest."""

    stage: str
    kind: str
    count: int
    example: str


@dataclass(frozen=True)
class TaskTrials:
    """The trials of one task that count towards a job, and how many more are known from before.

    Attributes:
        counted: The trials that count, oldest first.
        known: Older trials, which count for the best time only.
    """

    counted: tuple[Trial, ...]
    known: tuple[Trial, ...] = ()

    @property
    def all(self) -> tuple[Trial, ...]:
        return (*self.known, *self.counted)

    @property
    def best_us(self) -> float | None:
        """The best time of all trials in microseconds, to 0.1 ns as in `status`; None before the first success."""
        times = [us for trial in self.all if (us := trial.median_us) is not None]
        return round(min(times), 4) if times else None

    @property
    def failed(self) -> int:
        """How many of the trials that count failed."""
        return sum(trial.failure is not None for trial in self.counted)

    def curve(self) -> tuple[BestPoint, ...]:
        """Return each improvement of the best time. `trials` counts all of them, those from before too."""
        best = math.inf
        points = list[BestPoint]()
        for number, trial in enumerate(self.all, 1):
            if (us := trial.median_us) is not None and us < best:
                best = us
                points.append(BestPoint(number, round(us, 4)))
        return tuple(points)


def split(spec: JobSpec, task: int, trials: Sequence[Trial]) -> TaskTrials:
    """Return the trials of a task as the job counts them: a fresh job counts none that was known when it came."""
    before = spec.known_at_submit[task] if spec.fresh else 0
    return TaskTrials(tuple(trials[before:]), tuple(trials[:before]))


def latency_curve(spec: JobSpec, tasks: Sequence[TaskTrials]) -> tuple[LatencyPoint, ...]:
    """Return the latency each time it fell, and at the last trial.

    The curve begins when every task that has a time today had one: before that, the sum would lack tasks.
    """
    weights = [task.weight for task in spec.tasks]
    timed = {index for index, task in enumerate(tasks) if task.best_us is not None}
    best: list[float | None] = [None] * len(tasks)
    points = list[LatencyPoint]()
    trials = 0
    seconds = 0.0
    value = math.inf
    for moment, task, counts, us in _in_order(tasks):
        seconds = max(seconds, moment - spec.submitted_at)
        trials += counts
        if us is not None and us < (best[task] or math.inf):
            best[task] = round(us, 4)
            complete = timed <= {index for index, best_us in enumerate(best) if best_us is not None}
            if complete and (value := tasks_sum_ms(best, weights) or math.inf) < math.inf:
                points.append(LatencyPoint(round(seconds, 3), trials, value))
    if points and points[-1].trials < trials:
        points.append(LatencyPoint(round(seconds, 3), trials, value))
    return tuple(points)


def _in_order(tasks: Sequence[TaskTrials]) -> list[tuple[float, int, bool, float | None]]:
    """Return when each trial ended, its task, whether it counts, and its time. The order within a task is kept."""
    measured = list[tuple[float, int, bool, float | None]]()
    for index, task in enumerate(tasks):
        moment = -math.inf
        for number, trial in enumerate(task.all):
            moment = max(moment, trial.at)  # the clock may have been put back
            measured.append((moment, index, number >= len(task.known), trial.median_us))
    return sorted(measured, key=lambda trial: trial[0])


def failures(tasks: Sequence[TaskTrials]) -> tuple[FailureCount, ...]:
    """Return how many trials that count failed, by stage and kind, the most frequent first."""
    trials = sorted((trial for task in tasks for trial in task.counted), key=lambda trial: trial.at)
    failed = [trial.failure for trial in trials if trial.failure is not None]
    counts = Counter((failure.stage, failure.kind) for failure in failed)
    latest = {(failure.stage, failure.kind): failure.reason for failure in failed}
    return tuple(FailureCount(*kind, count, latest[kind]) for kind, count in counts.most_common())


@dataclass(frozen=True)
class History:
    """The trials of a job. `logs` has the tuning log of each task; None for a task that has nothing to tune."""

    spec: JobSpec
    logs: tuple[TuningLog | None, ...]

    def tasks(self) -> list[TaskTrials]:
        """Return the trials of each task, as they are now.

        Raises:
            StorageError: A log cannot be read.
        """
        return [
            TaskTrials(()) if log is None else split(self.spec, index, log.trials())
            for index, log in enumerate(self.logs)
        ]

    def outline(self) -> list[TaskTrials]:
        """Return the trials of each task without schedules and reasons of failures, which takes much less time.

        Raises:
            StorageError: A log cannot be read.
        """
        job = f"{self.spec.id:04}-{self.spec.name}"
        return [
            TaskTrials(())
            if log is None
            else split(self.spec, index, [_outline(entry, job) for entry in log.entries()])
            for index, log in enumerate(self.logs)
        ]

    def latency(self) -> tuple[LatencyPoint, ...]:
        """Return how the latency of the model fell.

        Raises:
            StorageError: A log cannot be read.
        """
        return latency_curve(self.spec, self.outline())


def _outline(entry: IndexEntry, job: str) -> Trial:
    times = () if entry.median_us is None else (entry.median_us,)
    whose = job if entry.measured_by(job) else ""
    return Trial(entry.hash, None, None, times, None, whose, entry.round, entry.at)


def of(workspace: Workspace, paths: JobPaths) -> History:
    """Return the history of a job.

    Raises:
        StorageError: What was submitted cannot be read.
    """
    spec = read_spec(paths)
    logs = (
        TuningLog(workspace.tuning_log(spec.target_key, task.hash).records) if task.tunable else None
        for task in spec.tasks
    )
    return History(spec, tuple(logs))


@dataclass(frozen=True)
class Outlook:
    """What more trials would bring.

    Attributes:
        latency_ms: The latency now.
        rest: The latency after the rest of the budget; None if nothing is left of it or the job has ended.
        hour: The latency after one more hour of stages, counted from now; None before the first stage has ended.
        metric: What the latency stands for.
        of_model: Whether the latency is that of the whole model. Before that was timed, it is the sum of the tasks.
    """

    latency_ms: float
    rest: Forecast | None
    hour: Forecast | None
    of_model: bool = False
    metric: Metric = field(default_factory=Metric)

    @property
    def saving(self) -> float | None:
        """The share of the latency that one more hour should save, from 0 to 1."""
        return None if self.hour is None else max(0.0, 1 - self.hour.median_ms / self.latency_ms)

    @property
    def says(self) -> str:
        """The forecast in words."""
        clauses = list[str]()
        if self.rest is not None:
            clauses.append(f"after the {self.rest.trials} trials that are left, {self._text(self.rest)}")
        if self.hour is not None:
            left = 0 if self.rest is None else self.rest.trials
            larger = " with a larger budget" if self.hour.trials > left else ""
            clauses.append(f"after one more hour{larger}, about {self.hour.trials} trials, {self._text(self.hour)}")
        if not clauses:
            return ""
        worth = "; that hour hardly pays" if self.saving is not None and self.saving < _WORTH else ""
        what = "forecast" if self.of_model else "forecast of the tasks' sum"
        return f"{what}: {'; '.join(clauses)}{worth}"

    def _text(self, forecast: Forecast) -> str:
        middle = self.metric.text(1e3 * forecast.median_ms, f"{forecast.median_ms:.4g} ms")
        low, high = sorted(self.metric.in_column(ms) or 0.0 for ms in (forecast.low_ms, forecast.high_ms))
        return f"{middle} (80% between {low:.4g} and {high:.4g})"

    @property
    def verdict(self) -> str:
        """Whether more tuning is worth it, in a sentence; empty before the first stage has ended."""
        if self.hour is None or self.saving is None:
            return ""
        least, most = (max(0.0, 1 - ms / self.latency_ms) for ms in (self.hour.high_ms, self.hour.low_ms))
        worth = ", so it hardly pays" if self.saving < _WORTH else ""
        return (
            f"One more hour of tuning should save {self.saving:.1%} of the latency"
            f" (80% between {least:.1%} and {most:.1%}){worth}."
        )


def outlook(
    spec: JobSpec,
    tasks: Sequence[TaskTrials],
    set_aside: Sequence[bool],
    times: Times,
    ended: bool,
    outside_ms: float | None = None,
) -> Outlook | None:
    """Forecast the latency of a job; None while no task has a time.

    Args:
        spec: What was submitted.
        set_aside: Which tasks are tuned no further.
        times: Where its time went. The pace of the hour is that of its stages so far.
        ended: Whether it has ended, and so uses no more of its budget.
        outside_ms: What the whole model takes outside of its tasks; None before it was timed.
    """
    curves = [_curve(spec, index, task_trials, not set_aside[index]) for index, task_trials in enumerate(tasks)]
    beside_ms = outside_ms or 0.0
    now = forecast(curves, 0, spec.trials_per_round, beside_ms)
    if now is None:
        return None
    done = sum(len(task_trials.counted) for task_trials in tasks)
    left = 0 if ended else max(0, spec.trials - done)
    measured = sum(trial.job == f"{spec.id:04}-{spec.name}" for task_trials in tasks for trial in task_trials.counted)
    worked = sum(times.parts[kind] for kind in KINDS)
    pace = round(measured * _HOUR_S / worked) if worked > 0 else 0
    return Outlook(
        now.median_ms,
        forecast(curves, left, spec.trials_per_round, beside_ms) if left else None,
        forecast(curves, pace, spec.trials_per_round, beside_ms) if pace else None,
        outside_ms is not None,
        spec.metric,
    )


def _curve(spec: JobSpec, index: int, trials: TaskTrials, open: bool) -> Curve:
    best = list[float]()
    low = math.inf
    for trial in trials.all:
        low = min(low, trial.median_us or math.inf)
        best.append(low)
    task = spec.tasks[index]
    return Curve(task.weight, tuple(best), open, task.gflop)
