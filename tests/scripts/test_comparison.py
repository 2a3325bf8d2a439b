"""bench/comparison and compare_networks: what a run needed to come to a goal, and how the tables compare that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def tables(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("comparison.tables")


@pytest.fixture(scope="module")
def networks(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("compare_networks")


def run_of(strategy: str, best: list[float], *, size: int = 2, seed: int = 1, layer: str = "L6") -> dict[str, Any]:
    """A run whose best times after each trial are given: 10 steps and 3 s of search a round, 5 s for two trials."""
    counts = [len(best[at : at + size]) for at in range(0, len(best), size)]
    common = {"replayed": 4, "invalid": 1, "repeated": 0, "known": 0, "steps": 10, "seconds": 3.0}
    way = {"layer": layer, "strategy": strategy, "sampler": "greedy", "seed": seed}
    budget = {"prior": False, "trials": len(best), "round": size, "measure_s": 2.5 * len(best), "measured": len(best)}
    return {**way, **budget, "best_over_trials": best, "rounds": [{**common, "size": count} for count in counts]}


def test_a_goal_costs_the_trials_until_it_was_met_and_the_searches_of_their_rounds(tables: ModuleType) -> None:
    run = run_of("beam", [9.0, 8.0, 5.0, 4.0, 4.0, 4.0])
    assert tables.reached(run, 5.0, trial_s=2.5) == (True, 3.0, 20, 2 * 3.0 + 3 * 2.5)
    assert tables.reached(run, 9.0, trial_s=2.5) == (True, 1.0, 10, 3.0 + 2.5)


def test_a_goal_that_was_not_met_costs_the_whole_run(tables: ModuleType) -> None:
    assert tables.reached(run_of("beam", [9.0, 8.0, 5.0, 4.0]), 1.0, trial_s=2.5) == (False, 4.0, 20, 2 * 3.0 + 4 * 2.5)


def test_the_baselines_goal_is_where_its_worst_seed_ends(tables: ModuleType) -> None:
    base = [run_of("annealing", [9.0, 9.0, 9.0, 4.0]), run_of("annealing", [9.0, 9.0, 9.0, 6.0], seed=2)]
    other = run_of("beam", [6.0, 5.0])
    text = tables.against_baseline([*base, other], {"L6": 2.5})
    line = next(line for line in text.splitlines() if line.startswith("| beam/greedy"))
    assert line == "| beam/greedy | 4.00 | 2.00 | 2.91 | 1 of 1 |"


def test_quality_is_the_best_known_over_the_runs_best(tables: ModuleType, tmp_path: Path) -> None:
    runs = [run_of("beam", [8.0, 5.0]), run_of("random", [16.0, 10.0])]
    text = tables.write(runs, {"L6": 5.0}, [], tmp_path)
    lines = {line.split(" | ")[0]: line for line in text.splitlines() if " of 1 | " in line}
    assert lines["| beam/greedy"].split(" | ")[1:3] == ["1.000", "1 of 1"]
    assert lines["| random/greedy"].split(" | ")[1:3] == ["0.500", "0 of 1"]
    assert (tmp_path / "L6.svg").stat().st_size > 1000
    assert (tmp_path / "quality.svg").stat().st_size > 1000


def test_only_layers_of_both_are_compared_with_the_baseline(tables: ModuleType) -> None:
    base = [run_of("annealing", [9.0, 9.0, 9.0, 4.0]), run_of("annealing", [9.0, 4.0], layer="L7")]
    other = [run_of("beam", [4.0, 4.0], layer="L7"), run_of("beam", [4.0, 4.0], layer="L8")]
    text = tables.against_baseline([*base, *other], {"L6": 2.5, "L7": 2.5, "L8": 2.5})
    line = next(line for line in text.splitlines() if line.startswith("| beam/greedy"))
    assert line == "| beam/greedy | 2.00 | 1.00 | 1.45 | 1 of 1 |"


def test_the_quality_of_a_moment_is_that_of_the_last_round_that_had_ended(tables: ModuleType) -> None:
    rounds = list(tables.round_ends(run_of("beam", [9.0, 8.0, 5.0, 4.0]), 2.5))
    assert rounds == [(2, 8.0, 8.0), (4, 16.0, 4.0)]
    assert [tables._quality_at(mark, 1, rounds, 2.0) for mark in (7.9, 8.0, 15.9, 16.0)] == [0.0, 0.25, 0.25, 0.5]


def test_a_network_has_a_sum_once_all_its_tasks_have_a_time(networks: ModuleType) -> None:
    times = [(11.0, "a", 1000.0), (12.0, "b", 500.0), (13.0, "a", 2000.0), (14.0, "a", 800.0)]
    assert list(networks.sums(times, {"a": 2, "b": 1}, begun=10.0)) == [(2.0, 2.5), (4.0, 2.1)]


def test_a_network_that_never_came_to_a_goal_counts_in_full_and_is_told(networks: ModuleType) -> None:
    runs = [{"curve": [(5.0, 4.0), (20.0, 3.0)], "seconds": 30.0}, {"curve": [(5.0, 4.0)], "seconds": 45.0}]
    assert networks.came(runs, 3.0) == "32 (1 of 2 never)"
    assert networks.came(runs, 4.0) == "5"


def test_what_started_from_the_prior_is_compared_with_its_own_kind(tables: ModuleType) -> None:
    runs = [run_of("annealing", [9.0, 4.0]), run_of("beam", [4.0, 4.0])]
    text = tables.against_baseline([*runs, *({**run, "prior": True} for run in runs)], {"L6": 2.5})
    lines = [line for line in text.splitlines() if line.startswith("| times fewer")]
    assert [line.split(" | ")[0] for line in lines] == [
        "| times fewer than annealing/greedy",
        "| times fewer than annealing/greedy + prior",
    ]
    assert text.count("| 2.00 |") == 2


def test_a_layer_counts_once_however_many_seeds_it_has(tables: ModuleType) -> None:
    base = [run_of("annealing", [9.0, 9.0, 9.0, 4.0]), run_of("annealing", [9.0, 4.0], layer="L7")]
    more = [run_of("beam", [4.0, 4.0], seed=seed) for seed in (1, 2, 3)] + [run_of("beam", [9.0, 4.0], layer="L7")]
    text = tables.against_baseline([*base, *more], {"L6": 2.5, "L7": 2.5})
    line = next(line for line in text.splitlines() if line.startswith("| beam/greedy"))
    assert line.split(" | ")[1] == "2.00"  # 4 times on one layer, as often on the other
