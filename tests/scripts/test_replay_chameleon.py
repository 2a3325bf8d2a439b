"""A search at the paper's budget keeps its agent, and the claims are ratios of what searches took."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("replay_chameleon")


@pytest.fixture(scope="module")
def space(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    results = [
        {
            "configuration": {"a": a, "b": b},
            "times": {"compilation": 1000.0},
            "invalidity": "correct",
            "measurements": [{"name": "time", "value": 1.0 + abs(a - 5) + abs(b - 9)}],
            "objectives": ["time"],
        }
        for a in range(20)
        for b in range(20)
    ]
    path = tmp_path_factory.mktemp("spaces") / "bowl_T4.json.gz"
    with gzip.open(path, "wt") as stream:
        json.dump({"results": results}, stream)
    return script.replay_search.read(path)


def test_a_search_has_so_many_rounds_and_pays_for_each_measurement(script: ModuleType, space: Any) -> None:
    run = script.replay(space, "annealing/greedy", 0, rounds=3)
    assert len(run.best) == 3 * script.COUNT and run.measure_s == len(run.best) and run.rounds == 2
    assert run.best[-1] == 1.0 and run.steps > 0


def test_the_agent_outlives_a_round(script: ModuleType, space: Any) -> None:
    make = script.kept_agent()
    agents = [make(script.view(space, [], None), seed).agent() for seed in (1, 2)]
    assert agents[0] is agents[1]
    assert script.kept_agent()(script.view(space, [], None), 1).agent() is not agents[0], "and not a search"


def test_the_goal_counts_the_measurements_before_it_was_reached(script: ModuleType) -> None:
    figures = {"curve": [[[3.0, 2.0, 1.0], [3.0, 3.0, 3.0]]]}
    assert script.needed(figures, [2.0]) == [[2.0, 3.0]]


def test_a_ratio_of_equal_figures_is_one_and_its_interval_contains_the_truth(script: ModuleType) -> None:
    assert script.interval([[2.0, 2.0]], [[1.0, 1.0]]) == (2.0, 2.0)
    rng = np.random.default_rng(0)
    low, high = script.interval([rng.uniform(1, 3, 50)], [rng.uniform(1, 3, 50)])
    assert low < 1 < high
