"""Any metric above 0 is kept as a time of which the smaller is the better, and comes back as it was."""

from __future__ import annotations

import pytest

from autotune.errors import InvalidData
from autotune.metric import Metric

RATE = Metric("speed", "GFLOP/s", "larger")


@pytest.mark.parametrize(
    ("metric", "value"),
    [(Metric(unit="ms"), 1.25), (Metric(unit="s"), 3.0), (Metric("size", "bytes"), 4096.0), (RATE, 0.5), (RATE, 3e9)],
)
def test_a_value_comes_back(metric: Metric, value: float) -> None:
    assert metric.from_us(metric.to_us(value)) == pytest.approx(value, rel=1e-12)


def test_a_time_is_kept_as_it_is_and_of_other_values_the_better_is_the_smaller() -> None:
    assert Metric(unit="ms").to_us(2.0) == 2000.0 and Metric(unit="ms").is_time
    assert not RATE.is_time and not Metric("size", "bytes").is_time
    assert RATE.to_us(10.0) < RATE.to_us(5.0)
    assert Metric("size", "bytes").to_us(5.0) < Metric("size", "bytes").to_us(10.0)
    assert Metric(unit="ms").text(1500.0) == "1.5 ms" and RATE.text(RATE.to_us(12.5)) == "12.5 GFLOP/s"


@pytest.mark.parametrize(
    ("metric", "column"),
    [(Metric(), "latency in ms"), (RATE, "speed in GFLOP/s"), (Metric("score", "", "larger"), "score")],
)
def test_a_column_is_headed_by_what_it_has(metric: Metric, column: str) -> None:
    assert metric.column == column


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e30])
def test_a_value_that_cannot_be_compared_is_refused(value: float) -> None:
    with pytest.raises(InvalidData, match=r"speed is"):
        RATE.to_us(value)
