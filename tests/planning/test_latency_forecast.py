"""The forecast of a model's latency, on curves whose future is known."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.planning.latency_forecast import Curve, Forecast, Typical, forecast

ENDLESS = math.inf


def made(rng: random.Random, trials: int, size: float = 0.3) -> tuple[float, ...]:
    """A curve that improves as records do: at trial n with a chance of 1.4/n, by less and less."""
    best, found = 1000.0, [1000.0]
    for n in range(2, trials + 1):
        if rng.random() < 1.4 / n:
            best *= math.exp(-rng.expovariate(1.0) * size / (1 + n / 16))
        found.append(best)
    return tuple(found)


def model(seed: int, trials: int) -> list[Curve]:
    rng = random.Random(seed)
    return [Curve(1, made(rng, trials)) for _ in range(10)]


def known(curves: list[Curve], trials: int) -> Forecast:
    found = forecast(curves, trials, 8)
    assert found is not None
    return found


def ends(seed: int) -> tuple[Forecast, float]:
    """A forecast at half of the trials, and what came of it."""
    curves = model(seed, 64)
    seen = [Curve(1, curve.best[:32]) for curve in curves]
    return known(seen, 320), sum(curve.best[-1] for curve in curves) / 1e3


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    found = [ends(seed) for seed in range(120)]
    held = sum(forecast.low_ms <= truth <= forecast.high_ms for forecast, truth in found) / len(found)
    assert 0.7 <= held <= 1.0


def test_the_median_is_nearer_than_no_change() -> None:
    found = [ends(seed) for seed in range(60)]
    error = statistics.fmean(abs(forecast.median_ms - truth) for forecast, truth in found)
    same = [sum(curve.best[31] for curve in model(seed, 64)) / 1e3 for seed in range(60)]
    assert error < statistics.fmean(abs(before - truth) for before, (_, truth) in zip(same, found, strict=True))


@given(st.integers(1, 2000), st.integers(0, 5000), st.integers(0, 9))
def test_it_never_says_that_a_model_becomes_slower(trials: int, more: int, seed: int) -> None:
    curves = [Curve(2, made(random.Random(seed), trials))]
    found, now = known(curves, more), 2 * curves[0].best[-1] / 1e3
    assert 0 < found.low_ms <= found.median_ms <= found.high_ms <= now * (1 + 1e-12)


def test_without_more_trials_nothing_changes() -> None:
    assert known([Curve(2, (30.0, 20.0)), Curve(1, (10.0,))], 0) == Forecast(0, 0.05, 0.05, 0.05)


def test_more_trials_bring_more_and_are_less_certain() -> None:
    few, many = known(model(3, 32), 64), known(model(3, 32), 4000)
    assert many.median_ms < few.median_ms
    assert many.high_ms - many.low_ms > few.high_ms - few.low_ms


def test_a_curve_that_is_still_falling_falls_further() -> None:
    flat = Curve(1, (1000.0,) * 64)
    steep = Curve(1, tuple(1000.0 * (n + 1) ** -0.5 for n in range(64)))
    shares = [known([curve], 64).median_ms * 1e3 / curve.best[-1] for curve in (flat, steep)]
    assert shares[1] < shares[0]


def test_a_closed_task_stays_as_it_is() -> None:
    assert known([Curve(1, (1000.0,) * 8, open=False)], 640).low_ms == 1.0


def test_a_task_without_a_time_counts_for_nothing() -> None:
    timed = Curve(1, (1000.0,) * 8)
    assert forecast([timed, Curve(1, (ENDLESS,)), Curve(1, ())], 64, 8) == forecast([timed], 64, 8)


@pytest.mark.parametrize("curves", [[], [Curve(1, ())], [Curve(1, (ENDLESS, ENDLESS))]])
def test_without_any_time_there_is_none(curves: list[Curve]) -> None:
    assert forecast(curves, 64, 8) is None


def test_the_interval_reaches_to_no_change_where_a_stall_is_likely_enough() -> None:
    curves = model(1, 40)
    now = sum(curve.best[-1] for curve in curves) / 1e3
    rare, likely = (forecast(curves, 400, 8, typical=Typical(stalled=chance)) for chance in (0.0, 0.2))
    assert rare is not None and likely is not None
    assert rare.high_ms < now * 0.999 and likely.high_ms == pytest.approx(now)


def test_it_is_the_same_every_time() -> None:
    assert forecast(model(1, 40), 99, 8) == forecast(model(1, 40), 99, 8)
