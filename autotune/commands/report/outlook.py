"""What more trials would bring a job: its latency after the rest of its budget, and after one more hour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.commands.report.history import TaskTrials
from autotune.commands.report.wall_time import Times
from autotune.planning.latency import Curve, Forecast, forecast
from autotune.storage.formats import KINDS, JobSpec

_HOUR_S = 3600.0
# Below this share of the latency, another hour is not worth it.
_WORTH = 0.01


@dataclass(frozen=True)
class Outlook:
    """What more trials would bring.

    Attributes:
        latency_ms: The latency now.
        rest: The latency after the rest of the budget; None if nothing is left of it or the job has ended.
        hour: The latency after one more hour of stages, counted from now; None before the first stage has ended.
    """

    latency_ms: float
    rest: Forecast | None
    hour: Forecast | None

    @property
    def saving(self) -> float | None:
        """The share of the latency that one more hour should save, from 0 to 1."""
        return None if self.hour is None else max(0.0, 1 - self.hour.median_ms / self.latency_ms)

    @property
    def says(self) -> str:
        """The forecast in words."""
        parts = list[str]()
        if self.rest is not None:
            parts.append(f"after the {self.rest.trials} trials that are left, {_ms(self.rest)}")
        if self.hour is not None:
            parts.append(f"after one more hour, about {self.hour.trials} trials from now, {_ms(self.hour)}")
        if not parts:
            return ""
        worth = "; that hour hardly pays" if self.saving is not None and self.saving < _WORTH else ""
        return f"forecast: {'; '.join(parts)}{worth}"

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


def _ms(found: Forecast) -> str:
    return f"{found.median_ms:.4g} ms (80% between {found.low_ms:.4g} and {found.high_ms:.4g})"


def outlook(
    spec: JobSpec, tasks: Sequence[TaskTrials], set_aside: Sequence[bool], times: Times, ended: bool
) -> Outlook | None:
    """Forecast the latency of a job; None while no task has a time.

    Args:
        spec: What was submitted.
        tasks: The trials of each task.
        set_aside: Which tasks are tuned no further.
        times: Where its time went. The pace of the hour is that of its stages so far.
        ended: Whether it has ended, and so uses no more of its budget.
    """
    curves = [_curve(spec, index, each, not set_aside[index]) for index, each in enumerate(tasks)]
    now = forecast(curves, 0, spec.trials_per_round)
    if now is None:
        return None
    done = sum(len(each.counted) for each in tasks)
    left = 0 if ended else max(0, spec.trials - done)
    measured = sum(trial.job == f"{spec.id:04}-{spec.name}" for each in tasks for trial in each.counted)
    worked = sum(times.parts[kind] for kind in KINDS)
    pace = round(measured * _HOUR_S / worked) if worked > 0 else 0
    return Outlook(
        now.median_ms,
        forecast(curves, left, spec.trials_per_round) if left else None,
        forecast(curves, pace, spec.trials_per_round) if pace else None,
    )


def _curve(spec: JobSpec, index: int, found: TaskTrials, open: bool) -> Curve:
    best, low = list[float](), math.inf
    for trial in found.all:
        low = min(low, trial.median_us or math.inf)
        best.append(low)
    task = spec.tasks[index]
    return Curve(task.weight, tuple(best), open, task.gflop)
