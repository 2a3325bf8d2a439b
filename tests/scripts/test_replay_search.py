"""A replayed search sees what was recorded, pays what it cost, and is judged between random search and the optimum."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FAILS = (2, 3)


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("replay_search")


def result(a: int, b: int) -> dict[str, Any]:
    failed = (a, b) == FAILS
    return {
        "configuration": {"a": a, "b": b},
        "times": {"compilation": 1000.0, "framework": 0, **({} if failed else {"runtimes": [400.0, 100.0]})},
        "invalidity": "runtime" if failed else "correct",
        "measurements": [{"name": "time", "value": "RuntimeFailedConfig" if failed else 1.0 + a * a + 3.0 * b}],
        "objectives": ["time"],
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A space of which the restriction `a + b <= 40` leaves out the rest."""
    path = tmp_path / "bowl_T4.json.gz"
    pairs = [(a, b) for a, b in itertools.product(range(30), range(30)) if a + b <= 40]
    with gzip.open(path, "wt") as stream:
        json.dump({"results": [result(*pair) for pair in reversed(pairs)]}, stream)
    return path


def test_results_become_ordered_knobs_times_and_costs(script: ModuleType, file: Path) -> None:
    space = script.read(file)
    assert space.name == "bowl"
    assert [knob.values for knob in space.space.knobs] == [(0,), tuple(range(30)), tuple(range(30))]
    assert space.us[space.rows[0, 4, 5]] == 1e3 * (1 + 16 + 15)
    assert space.seconds[space.rows[0, 4, 5]] == 1.5
    assert np.isnan(space.us[space.rows[(0, *FAILS)]]) and space.seconds[space.rows[(0, *FAILS)]] == 1.0


def test_a_cache_of_kernel_tuner_is_the_same_space(script: ModuleType, file: Path, tmp_path: Path) -> None:
    with gzip.open(file, "rt") as stream:
        results = json.load(stream)["results"]
    entries = {
        str(place): {
            **entry["configuration"],
            "time": entry["measurements"][0]["value"],
            "compile_time": 1000.0,
            "benchmark_time": 0.0 if entry["invalidity"] == "runtime" else 500.0,
        }
        for place, entry in enumerate(results)
    }
    cache = tmp_path / "cache.json"
    cache.write_text(json.dumps({"tune_params_keys": ["a", "b"], "cache": entries}))
    here = script.read(file)
    there = script.read(cache)
    assert here.space.knobs == there.space.knobs and here.rows == there.rows
    np.testing.assert_array_equal(here.us, there.us)
    np.testing.assert_array_equal(here.seconds, there.seconds)


def test_a_search_measures_nothing_twice_and_goes_on_as_long_as_it_is_judged(script: ModuleType, file: Path) -> None:
    space = script.read(file)
    run = script.search(space, "genetic", seed=1, count=8)
    assert run.seconds[-1] > space.clock[-1]
    assert len(set(np.round(np.diff(run.seconds), 6)) - {1.0, 1.5}) == 0
    assert (np.diff(run.best[~np.isnan(run.best)]) <= 0).all()
    again = script.search(space, "genetic", seed=1, count=8)
    np.testing.assert_array_equal(run.best, again.best)


def test_the_optimum_scores_1_and_the_curve_of_random_search_0(script: ModuleType, file: Path) -> None:
    space = script.read(file)
    optimum = script.Run(space.clock, np.full(len(space.clock), space.ascending[0]))
    assert script.Pooled.of(space, [optimum]).score() == 1.0
    nearest = space.ascending[np.abs(space.ascending[:, None] - space.random_curve).argmin(axis=0)]
    assert abs(script.Pooled.of(space, [script.Run(space.clock, nearest)]).score()) < 0.05


def test_random_search_scores_about_0(script: ModuleType, file: Path) -> None:
    space = script.read(file)
    runs = [script.search(space, "random", seed, count=1) for seed in range(100)]
    low, high = script.interval([script.Pooled.of(space, runs)], processes=1)
    assert low - 0.15 < 0 < high + 0.15


def test_drawing_each_search_once_gives_the_score(script: ModuleType, file: Path) -> None:
    space = script.read(file)
    pooled = script.Pooled.of(space, [script.search(space, "random", seed, count=8) for seed in range(9)])
    assert pooled.score(np.ones(9, dtype=int)) == pooled.score()


def test_a_search_that_is_drawn_twice_counts_as_two_and_one_that_is_not_drawn_is_left_out(
    script: ModuleType, file: Path
) -> None:
    space = script.read(file)
    runs = [script.search(space, "genetic", seed, count=8) for seed in range(4)]
    listed = script.Pooled.of(space, [runs[0], runs[2], runs[2], runs[3]]).score()
    assert script.Pooled.of(space, runs).score(np.array([1, 0, 2, 1])) == pytest.approx(listed, abs=1e-12)
    assert abs(script.Pooled.of(space, runs).score() - listed) > 1e-3


def test_an_interval_is_the_same_from_one_process_and_from_two(script: ModuleType, file: Path) -> None:
    space = script.read(file)
    runs = [script.search(space, "random", seed, count=8) for seed in range(9)]
    pools = [script.Pooled.of(space, runs), script.Pooled.of(space, runs[:5])]
    assert script.interval(pools, processes=1) == script.interval(pools, processes=2)


def test_looked_up_scores_are_those_of_the_trees(script: ModuleType, file: Path) -> None:
    space = script.read(file)
    trials = [
        script.Measured(row, space.us[place]) for row, place in list(space.rows.items())[::40] if row[1:] != FAILS
    ]
    trees = script.train_knob_score(space.space, trials)
    tabled = script.TabledScore(space, trees)
    rows = np.array([(0, 3, 4), (0, 29, 29), (0, 0, 0)])  # the second is not allowed
    for _ in range(100):
        np.testing.assert_array_equal(tabled(rows), trees(rows))


def test_searches_of_another_tuner_are_judged_by_what_they_measured(script: ModuleType, file: Path) -> None:
    space = script.read(file)
    ours = script.search(space, "random", 1, count=8)
    optimum = int(np.nanargmin(space.us))
    theirs = script._until_the_end(space, [optimum])
    assert theirs.seconds[-1] > space.clock[-1] and set(theirs.best) == {space.ascending[0]}
    assert script.Pooled.of(space, [theirs]).score() == 1.0 > script.Pooled.of(space, [ours]).score()


def test_tiles_are_ordered_from_the_innermost_factor_outwards(script: ModuleType) -> None:
    assert script._ordered([(2, 2), (4, 1), (1, 4)]) == ((4, 1), (2, 2), (1, 4))
