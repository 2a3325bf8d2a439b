"""scripts/judge_budget.py: it ends jobs where an automatic budget would, and says what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("judge_budget")


def test_trials_are_played_back_in_the_order_of_all_tasks(script: ModuleType) -> None:
    tasks = [script.Task(1, 1.0, ((1.0, 9.0), (4.0, 5.0))), script.Task(2, 1.0, ((2.0, math.inf), (3.0, 8.0)))]
    first, second = script.after(tasks, 3)
    assert (first.running_best, second.running_best) == ((9.0,), (math.inf, 8.0))
    assert script.latency_us(script.after(tasks, 4)) == 21.0


def test_an_end_is_judged_by_what_came_later(script: ModuleType) -> None:
    times = [1000.0] * 60 + [800.0] * 60
    end = script.end_of([script.Task(1, 1.0, tuple(enumerate(times)))], 8)
    assert end is not None and 8 < end.trials <= 60
    assert end.later == 3 * end.trials and end.ratio == (1.25 if end.later > 60 else 1.0)


def test_what_improves_all_the_time_does_not_end(script: ModuleType) -> None:
    steep = script.Task(1, 1.0, tuple((float(n), 1e6 / n) for n in range(1, 60)))
    assert script.end_of([steep], 8) is None


def test_without_trials_it_says_so(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(tmp_path)]) == 1
    assert "no job has trials" in capsys.readouterr().err
