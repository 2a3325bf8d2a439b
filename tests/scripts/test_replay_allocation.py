"""A replay spends the budget on the trials of the log, where the rule under test says."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from autotune.planning.view import JobView, TaskView


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("replay_allocation")


def job(*tasks: TaskView) -> JobView:
    return JobView(1, "cpu", tasks, (), trials=1000, trials_per_round=8, patience=0, min_gain=0.0)


def falling(best: float, trials: int = 40, gflop: float = 0.0) -> TaskView:
    """A task whose best time falls like 1/trials."""
    curve = tuple(best / trial for trial in range(1, trials + 1))
    return TaskView("key", 1, trials, curve, gflop=gflop)


def test_the_whole_log_gives_its_best_times(script: ModuleType) -> None:
    assert script.played(job(falling(400.0), falling(200.0)), 80, script.RULES["gradient"]) == 400 / 40 + 200 / 40


def test_rounds_that_grow_reach_more_tasks_with_the_same_trials(script: ModuleType) -> None:
    model = job(*[falling(100.0) for _ in range(4)])
    whole, growing = (script.played(model, 24, script.RULES[name]) for name in ("gradient", "gradient, growing rounds"))
    assert growing < whole


def test_by_speed_the_task_that_computes_slower_goes_first(script: ModuleType) -> None:
    still = TaskView("key", 1, 40, (300.0,) * 40, gflop=10.0)
    model = job(still, falling(100.0, gflop=0.1))
    assert script.played(model, 8, script.RULES["gradient, growing rounds"]) == 300 + 100 / 2
    assert script.played(model, 8, script.RULES["ours: by speed, growing rounds"]) == 300 + 100 / 6


def test_a_budget_that_the_log_does_not_fill_is_not_played(script: ModuleType) -> None:
    assert not script.is_worth_playing(job(falling(100.0)), 40)
    assert script.is_worth_playing(job(falling(100.0)), 39)


def test_uniform_shares_go_to_every_task_alike(script: ModuleType) -> None:
    model = job(falling(4000.0), falling(1.0))  # two first trials of each, and then rounds of eight
    assert script.played(model, 36, script.RULES["uniform"]) == 4000 / 18 + 1 / 18


def test_the_interval_is_over_jobs(script: ModuleType) -> None:
    assert script.interval([[2.0, 0.5]]) == (1.0, 1.0), "one job says nothing of others"
    low, high = script.interval([[1.0], [4.0], [2.0], [2.0]])
    assert 1.0 <= low < 2.0 < high <= 4.0
