"""scripts/judge_forecast.py: it cuts logs where it says, and compares with what came of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("judge_forecast")


def test_a_cut_keeps_the_first_trials_of_all_tasks(script: ModuleType) -> None:
    tasks = [script.Task(1, ((1.0, 9.0), (4.0, 5.0))), script.Task(2, ((2.0, math.inf), (3.0, 8.0)))]
    first, second = script.cut(tasks, 3)
    assert (first.best, second.best) == ((9.0,), (math.inf, 8.0))
    assert script.latency(script.cut(tasks, 4)) == 0.021


def test_a_line_in_the_logarithms_is_followed_to_its_end(script: ModuleType) -> None:
    task = script.Task(1, tuple((float(n), 1e4 / math.sqrt(n)) for n in range(1, 201)))
    assert script.straight_line([task], 200, 0.5) == pytest.approx(10.0 / math.sqrt(200))


def test_what_no_longer_changes_is_forecast_well(script: ModuleType) -> None:
    flat = [script.Task(1, tuple((float(n), 500.0) for n in range(200))) for _ in range(4)]
    judged = script.judge(flat, 0.75, 8)
    assert judged.unchanged == 1.0
    assert 0.97 < judged.median <= 1.0 and judged.high <= 1.0


def test_a_task_without_a_time_yet_is_not_judged(script: ModuleType) -> None:
    late = [script.Task(1, ((1.0, math.inf), (2.0, math.inf), (3.0, math.inf), (4.0, 5.0)))]
    assert script.judge(late, 0.5, 8) is None


def test_without_trials_it_says_so(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(tmp_path)]) == 1
    assert "no job has trials" in capsys.readouterr().err
