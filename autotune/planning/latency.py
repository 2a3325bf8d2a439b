"""A model's latency by the times of its tasks: what it is now, and what more trials will make of it.

The forecast is a median and an interval.

A task has a least possible time, at which it would do as many operations a second as the fastest task of the model.
What it takes above that falls as a power of its trials. The sum over all tasks is what the model should save. How far
what it does save is from that, as a ratio, was seen on logs. The more tasks share in the saving, the less it varies,
since they improve independently of each other.

How fast a curve fell lately is not used. On the logs it told less of what comes than how far the task is from the
least possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Typical:
    """What is assumed of tasks.

    The defaults are fitted to the logs of networks on a CPU.

    Attributes:
        power: The time above the least possible falls as the trials to the power of minus this.
        unseen: By how much the machine is faster than the fastest task of a model of one task. With more tasks it is
            less: so many times as many.
        low: The natural logarithm of the ratio of the saving to the expected one, which one in ten is below, if one
            task saves all of it.
        high: The same, which one in ten is above.
        noise: What is so small a saving, as a share of the latency, that the ratio says little.
    """

    power: float = 0.4
    unseen: float = 0.1
    low: float = -2.66
    high: float = 1.37
    noise: float = 0.01


TYPICAL = Typical()


@dataclass(frozen=True)
class Curve:
    """The trials of one task.

    Attributes:
        weight: How often the model runs the task.
        best: Its best time in microseconds after each trial; infinity before the first success.
        open: Whether it may get more trials.
        gflop: Floating-point operations of one run, in 1e9; 0 if unknown.
    """

    weight: int
    best: tuple[float, ...]
    open: bool = True
    gflop: float = 0.0

    @property
    def known(self) -> bool:
        return bool(self.best) and math.isfinite(self.best[-1])


@dataclass(frozen=True)
class Forecast:
    """The latency of the model after so many more trials, in milliseconds: the median, and an interval of 80%."""

    trials: int
    median_ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True)
class Expected:
    """What more trials should save.

    Attributes:
        saving: The share of the latency, from 0 to 1.
        spread: How much it varies: 1 if one task saves all of it, and one over the square root of their number if
            several save as much as each other.
    """

    saving: float
    spread: float


def tasks_sum_ms(best_us: Iterable[float | None], weights: Iterable[int]) -> float | None:
    """Return the sum of the best times there are in milliseconds; None while no task that counts has one.

    Args:
        best_us: The best time of each task in microseconds.
        weights: How often the model runs each of them.
    """
    times = [best * weight for best, weight in zip(best_us, weights, strict=False) if best is not None and weight]
    return sum(times) / 1e3 if times else None


def outside_now(outside_ms: float, tasks_ms: float, now_ms: float) -> float:
    """Return what a model takes besides its tasks, once they take another time.

    Kernels without trials and calls take what they took. Where the tasks take longer alone than in the model, they do
    so by the same factor.

    Args:
        outside_ms: What it took besides its tasks.
        tasks_ms: What they took then.
        now_ms: What they take.
    """
    return outside_ms if outside_ms >= 0 else outside_ms * now_ms / tasks_ms


def forecast(
    curves: Sequence[Curve], trials: int, per_round: int, outside_ms: float = 0.0, typical: Typical = TYPICAL
) -> Forecast | None:
    """Return the latency after more trials; None while no task has a time.

    Args:
        curves: The tasks. Those without a time count for nothing, as they do in the latency.
        trials: How many more trials there will be.
        per_round: How many trials a task gets at a time.
        outside_ms: What the model takes besides its tasks, which no trial changes.
        typical: What is assumed of tasks.
    """
    timed = [curve for curve in curves if curve.known]
    if not timed:
        return None
    expectation = expected(timed, shared_out(timed, trials, per_round), typical)
    now = sum(curve.weight * curve.best[-1] for curve in timed) / 1e3
    median, low, high = (
        outside_ms + now * math.exp(-_gain(expectation, ratio, typical)) for ratio in (0.0, typical.high, typical.low)
    )
    return Forecast(trials, median, low, high)


def _gain(expectation: Expected, ratio: float, typical: Typical) -> float:
    """Return the logarithm of the gain in speed if the saving is this far from the expected one."""
    noise = min(typical.noise, expectation.saving)
    return max(0.0, (expectation.saving + noise) * math.exp(expectation.spread * ratio) - noise)


def expected(curves: Sequence[Curve], more: Sequence[int], typical: Typical = TYPICAL) -> Expected:
    """Return what so many more trials of each task should save. Each task has a time."""
    fastest = max(curve.gflop / curve.best[-1] for curve in curves)
    faster = 1 + typical.unseen / len(curves)
    least = [curve.gflop / (fastest * faster) if fastest else curve.best[-1] / faster for curve in curves]
    tasks = zip(curves, more, least, strict=True)
    savings = [_saving(curve, count, least_us, typical.power) for curve, count, least_us in tasks]
    total = sum(savings)
    spread = math.hypot(*savings) / total if total else 0.0
    return Expected(total / sum(curve.weight * curve.best[-1] for curve in curves), spread)


def _saving(curve: Curve, more: int, least_us: float, power: float) -> float:
    """Return what so many more trials of a task should save, in microseconds of the model."""
    trials = len(curve.best)
    return curve.weight * (curve.best[-1] - least_us) * (1 - math.pow(trials / (trials + more), power))


def shared_out(curves: Sequence[Curve], trials: int, per_round: int) -> list[int]:
    """Return how many more trials each task gets: each round goes where 1/trials promises most, as the planner does."""
    more = [0] * len(curves)
    takers = [place for place, curve in enumerate(curves) if curve.open]
    left = trials
    while left > 0 and takers:
        size = min(left, max(per_round, trials // 200))
        place = max(takers, key=lambda place: _promise(curves[place], more[place]))
        more[place] += size
        left -= size
    return more


def _promise(curve: Curve, more: int) -> float:
    return curve.weight * curve.best[-1] / (len(curve.best) + more)
