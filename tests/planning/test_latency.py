"""The forecast of a model's latency, on curves whose future is known."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.planning.latency import Curve, Forecast, forecast

ENDLESS = math.inf


LEAST = 100.0


def made(rng: random.Random, trials: int, far: float = 3.0) -> tuple[float, ...]:
    """A curve that falls towards the least possible, in steps and with luck, from so many times as far above it."""
    luck = rng.lognormvariate(0.0, 0.5)
    best = list[float]()
    for n in range(1, trials + 1):
        us = LEAST * (1 + far * luck * rng.lognormvariate(0.0, 0.3) / n**0.4)
        best.append(min(us, best[-1] if best else ENDLESS))
    return tuple(best)


def model(seed: int, trials: int, tasks: int = 10) -> list[Curve]:
    """Tasks that all could be as fast as the first is."""
    rng = random.Random(seed)
    curves = [Curve(1, made(rng, trials), gflop=1.0) for _ in range(tasks - 1)]
    return [Curve(1, (LEAST,) * trials, gflop=1.0), *curves]


def known(curves: list[Curve], trials: int) -> Forecast:
    result = forecast(curves, trials, 8)
    assert result is not None
    return result


def width(expected: Forecast) -> float:
    return (expected.high_ms - expected.low_ms) / expected.median_ms


def ends(seed: int) -> tuple[Forecast, float]:
    """A forecast at half of the trials, and what came of it."""
    curves = model(seed, 64)
    seen = [Curve(1, curve.best[:32], gflop=1.0) for curve in curves]
    return known(seen, 320), sum(curve.best[-1] for curve in curves) / 1e3


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    pairs = [ends(seed) for seed in range(120)]
    held = sum(forecast.low_ms <= truth <= forecast.high_ms for forecast, truth in pairs) / len(pairs)
    assert 0.7 <= held <= 1.0


def test_the_median_is_nearer_than_no_change() -> None:
    pairs = [ends(seed) for seed in range(60)]
    error = statistics.fmean(abs(forecast.median_ms - truth) for forecast, truth in pairs)
    same = [sum(curve.best[31] for curve in model(seed, 64)) / 1e3 for seed in range(60)]
    assert error < statistics.fmean(abs(before - truth) for before, (_, truth) in zip(same, pairs, strict=True))


def test_a_task_far_from_the_least_possible_gains_more() -> None:
    fast = Curve(1, (100.0,) * 16, gflop=1.0)
    near, far = (known([fast, Curve(1, (us,) * 16, gflop=1.0)], 64).median_ms * 1e3 / (100 + us) for us in (110, 400))
    assert far < 0.9 < near < 1.0


def test_many_tasks_together_are_more_certain_than_one() -> None:
    fast = Curve(1, (100.0,) * 16, gflop=1.0)
    slow = Curve(1, (400.0,) * 16, gflop=1.0)
    few = known([fast, slow], 16)
    many = known([fast] * 16 + [slow] * 16, 256)
    assert width(many) < 0.5 * width(few)


def test_a_task_without_operations_is_expected_to_gain_little() -> None:
    assert 0.9 < known([Curve(1, (1000.0,) * 16)], 64).median_ms < 1.0


@given(st.integers(1, 2000), st.integers(0, 5000), st.integers(0, 9))
def test_a_forecast_never_says_that_a_model_becomes_slower(trials: int, more: int, seed: int) -> None:
    curves = [Curve(2, made(random.Random(seed), trials), gflop=1.0)]
    expected = known(curves, more)
    now = 2 * curves[0].best[-1] / 1e3
    assert 0 < expected.low_ms <= expected.median_ms <= expected.high_ms <= now * (1 + 1e-12)


def test_without_more_trials_nothing_changes() -> None:
    assert known([Curve(2, (30.0, 20.0)), Curve(1, (10.0,))], 0) == Forecast(0, 0.05, 0.05, 0.05)


def test_more_trials_bring_more_and_are_less_certain() -> None:
    few = known(model(3, 32), 64)
    many = known(model(3, 32), 4000)
    assert many.median_ms < few.median_ms
    assert many.high_ms - many.low_ms > few.high_ms - few.low_ms


def test_a_closed_task_stays_as_it_is() -> None:
    assert known([Curve(1, (1000.0,) * 8, open=False)], 640).low_ms == 1.0


def test_a_task_without_a_time_counts_for_nothing() -> None:
    timed = Curve(1, (1000.0,) * 8)
    assert forecast([timed, Curve(1, (ENDLESS,)), Curve(1, ())], 64, 8) == forecast([timed], 64, 8)


@pytest.mark.parametrize("curves", [[], [Curve(1, ())], [Curve(1, (ENDLESS, ENDLESS))]])
def test_without_any_time_there_is_none(curves: list[Curve]) -> None:
    assert forecast(curves, 64, 8) is None


def test_an_interval_of_little_saving_reaches_to_no_change() -> None:
    curves = [Curve(1, (100.0,) * 64, gflop=1.0), Curve(1, (105.0,) * 64, gflop=1.0)]
    assert known(curves, 64).high_ms == 0.205 > known(curves, 64).median_ms
