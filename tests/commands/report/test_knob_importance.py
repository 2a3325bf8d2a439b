"""Which knobs matter, from traces."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from autotune.commands.report.knob_importance import KnobImportance, decisions, importance, shown, values
from autotune.storage.formats import Trial

Make = Callable[..., Trial]
TILE = "conv2d loop 1, tile of 2"
CATEGORY = "one of 0, 16, 64"


def test_a_decision_is_named_by_what_it_decides_and_a_few_trials_say_nothing(make_trial: Make) -> None:
    assert decisions(make_trial(0, 2, 5.0, 0.0, tile=8).trace) == {TILE: "8x8", CATEGORY: "64"}
    trials: list[Trial] = [make_trial(0, n, 1000.0 + n, n, 1 + n % 2) for n in range(15)]
    assert importance(trials) == ()


@pytest.mark.parametrize("trace", [None, [], "x", [[["GetLoops"]], []], [[], [[7, 1]]], [[["SampleCategorical"]], 3]])
def test_what_is_no_trace_has_none(trace: Any) -> None:
    assert decisions(trace) == {}


def test_the_knob_that_decides_the_time_explains_it(make_trial: Make) -> None:
    rng = random.Random(0)
    trials = [make_trial(0, n, 1000.0 / tile, n, tile) for n in range(60) for tile in [rng.choice((1, 2, 4))]]
    first, second = importance(trials)
    assert (first.name, first.best, first.good, first.trials) == (TILE, "16x4", ("16x4",), 60)
    assert first.importance == pytest.approx(1.0)
    assert (second.name, second.importance < 0.15) == (CATEGORY, True)


def test_many_values_alone_explain_nothing(make_trial: Make) -> None:
    rng = random.Random(1)
    importances = list[float]()
    for _ in range(20):
        trials = [
            make_trial(0, 3 * n, rng.lognormvariate(5, 1), n, rng.choice((1, 2, 4, 8, 16, 32))) for n in range(48)
        ]
        importances.append(importance(trials)[0].importance)
    assert statistics.mean(importances) < 0.1


def test_the_trials_have_their_values_of_knobs_the_fastest_first(make_trial: Make) -> None:
    trials = [make_trial(0, n, 1000.0 / tile, n, tile) for n, tile in enumerate((1, 2, 4))]
    rows = values([*trials, make_trial(0, 99, None, 99.0)], [TILE, "no such knob"])
    assert [(row.us, row.values) for row in rows] == [
        (250.0, ("16x4", "")), (500.0, ("32x2", "")), (1000.0, ("64x1", "")),
    ]  # fmt: skip
    assert values(trials, []) == ()


def test_knobs_that_explain_nothing_are_not_shown() -> None:
    knobs = [KnobImportance(str(n), n / 1000, "", (), 20) for n in (300, 200, 100, 50, 20, 15, 5)]
    assert [knob.name for knob in shown(knobs)] == ["300", "200", "100", "50", "20"]
    assert shown(knobs[6:]) == ()
