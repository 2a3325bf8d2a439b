"""What more trials will make of a model's latency, from the curve of each task: a median and an interval.

Improvements come at a constant rate over the logarithm of the trials, as records do. Their sizes, as logarithms of the
time above the least possible, are exponentially distributed, with a mean that shrinks as a curve goes on. The least
possible follows from the task that does most operations a second. The rate of a task, and how large its
improvements are beside typical ones, are read from its own curve, to which a few typical improvements are added, so
that a short curve says little. The future is drawn many times; what all tasks have in common, such as a search that
works better here than there, is drawn once for all of them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

_INTERVAL = (0.1, 0.9)


@dataclass(frozen=True)
class Typical:
    """What is assumed of curves, besides what a curve shows itself.

    The defaults, but for `stalled`, are fitted to the logs of 14 networks on a CPU (scripts/judge_forecast.py), by the
    interval score of Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation" (2007), 6.2.

    Attributes:
        rate: How many improvements a typical curve has for each e-fold of trials.
        size: The mean size of its first improvements.
        half_after: After how many trials the size has halved.
        rate_weight: How many e-folds of a typical curve count beside the task's own.
        size_weight: How many improvements of a typical curve count beside the task's own.
        common: The standard deviation of the logarithm of what all tasks have in common.
        headroom: How much faster than the fastest task of the model a task may become, in operations per second.
        stalled: The chance that nothing better is found at all, in any task. With a tenth, an interval of 80% reaches
            up to "no change".
    """

    rate: float = 5.3
    size: float = 0.30
    half_after: float = 17
    rate_weight: float = 4.7
    size_weight: float = 0.13
    common: float = 0.88
    headroom: float = 1.14
    stalled: float = 0.1

    def size_after(self, trials: float) -> float:
        """Return the mean size of an improvement after so many trials."""
        return self.size / (1 + trials / self.half_after)


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


def forecast(
    curves: Sequence[Curve],
    trials: int,
    per_round: int,
    seed: int = 0,
    typical: Typical = TYPICAL,
    draws: int = 400,
) -> Forecast | None:
    """Return the latency after more trials; None while no task has a time.

    Args:
        curves: The tasks. Those without a time count for nothing, as they do in the latency.
        trials: How many more trials there will be.
        per_round: How many trials a task gets at a time.
        seed: The seed of the draws. The same arguments always give the same forecast.
        typical: What is assumed of curves.
        draws: How many futures to draw.
    """
    known = [curve for curve in curves if curve.known]
    if not known:
        return None
    futures = list(zip(known, _shared_out(known, trials, per_round), strict=True))
    rng, drawn = random.Random(seed), list[float]()
    fastest = typical.headroom * max(curve.gflop / curve.best[-1] for curve in known)
    habits = [_habit(curve, fastest, typical) for curve in known]
    for _ in range(draws):
        common = 0.0 if rng.random() < typical.stalled else math.exp(rng.gauss(0.0, typical.common))
        pairs = zip(futures, habits, strict=True)
        drawn.append(sum(_future(curve, more, habit, common, typical, rng) for (curve, more), habit in pairs) / 1e3)
    drawn.sort()
    low, high = (drawn[min(draws - 1, round(part * draws))] for part in _INTERVAL)
    return Forecast(trials, drawn[draws // 2], low, high)


def _shared_out(curves: Sequence[Curve], trials: int, per_round: int) -> list[int]:
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


@dataclass(frozen=True)
class _Habit:
    """How a task improves: how often for each e-fold of trials, how much beside a typical task, and down to what."""

    rate: float
    size: float
    least_us: float


def _habit(curve: Curve, fastest: float, typical: Typical) -> _Habit:
    first = next(place for place, best in enumerate(curve.best) if math.isfinite(best))
    pairs = enumerate(itertools.pairwise(curve.best[first:]), first + 2)
    found = [(trials, math.log(before / after)) for trials, (before, after) in pairs if after < before]
    folds = math.log(len(curve.best) / (first + 1))
    rate = (len(found) + typical.rate * typical.rate_weight) / (folds + typical.rate_weight)
    # As ratios, so that a large early improvement does not promise large late ones.
    ratios = [size / typical.size_after(trials) for trials, size in found]
    least = curve.gflop / fastest if fastest else 0.0
    return _Habit(rate, (sum(ratios) + typical.size_weight) / (len(ratios) + typical.size_weight), least)


def _future(curve: Curve, more: int, habit: _Habit, common: float, typical: Typical, rng: random.Random) -> float:
    """Return one possible time of a task after more trials, in microseconds, times its weight."""
    trials, gain = len(curve.best), 0.0
    folds = math.log((trials + more) / trials)
    for _ in range(_poisson(habit.rate * folds, rng)):
        at = trials * math.exp(folds * rng.random())
        gain += rng.expovariate(1.0) * habit.size * common * typical.size_after(at)
    return curve.weight * (habit.least_us + (curve.best[-1] - habit.least_us) * math.exp(-gain))


def _poisson(expected: float, rng: random.Random) -> int:
    """Return a draw from the Poisson distribution, by multiplying uniform numbers (Knuth); `expected` is small."""
    limit, product, count = math.exp(-expected), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count
