"""scripts/bench/measure_estimates: what `status` shows as a share of what `export` finds."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


def test_an_estimate_is_compared_as_a_share_of_a_runtime_that_was_timed_beside_it(
    load_script: Callable[[str], ModuleType],
) -> None:
    estimate = load_script("measure_estimates").Estimate("net", 1.5, 1.7, 3.4, 2.0, 0.4)
    assert estimate.row() == "| net | 1.5 | 1.7 | 2 | 0.50 | 0.40 | 1.25 |"


def test_estimates_that_are_off_by_a_tenth_at_most_are_close(load_script: Callable[[str], ModuleType]) -> None:
    script = load_script("measure_estimates")
    estimates = [script.Estimate("net", 1.5, model_ms, 2.0, 2.0, 1.0) for model_ms in (1.7, 1.85, 2.15, 2.3)]
    assert script.summary(estimates) == "2 of 4 within 10%"
