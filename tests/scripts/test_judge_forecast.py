"""scripts/judge_forecast.py: it cuts logs where it says, and compares with what came of them."""

from __future__ import annotations

import dataclasses
import math
import random
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


def job(script: ModuleType, *tasks: object, marks: str = "") -> object:
    return script.Job(frozenset(marks.split()), tasks, 8)


def test_what_no_longer_changes_is_forecast_well(script: ModuleType) -> None:
    flat = [script.Task(1, tuple((float(n), 500.0) for n in range(200))) for _ in range(4)]
    judged = script.judge(script.cases(job(script, *flat))[-1])
    assert (judged.part, judged.unchanged) == (0.75, 1.0)
    assert 0.97 < judged.median <= 1.0 and judged.high <= 1.0


def test_a_task_without_a_time_yet_is_not_judged(script: ModuleType) -> None:
    late = script.Task(1, ((1.0, math.inf), (2.0, math.inf), (3.0, math.inf), (4.0, 5.0)))
    assert script.cases(job(script, late)) == []


def test_jobs_that_share_a_mark_are_of_one_network(script: ModuleType) -> None:
    marks = ("resnet a b", "vgg c", "other b d", "last d c", "mlp e")
    jobs = [job(script, marks=each) for each in marks]
    groups = [sorted(jobs.index(each) for each in group) for group in script.networks(jobs)]
    assert sorted(groups) == [[0, 1, 2, 3], [4]]


def test_the_score_of_a_network_has_no_say_in_its_own_constants(script: ModuleType) -> None:
    scores = [[0.0, 5.0, 5.0], [9.0, 4.0, 4.0], [9.0, 9.0, 1.0]]
    assert [script.best_for_others(scores, place) for place in range(3)] == [1, 0, 0]


def test_an_interval_that_misses_the_truth_costs_more_than_a_wide_one(script: ModuleType) -> None:
    wide, narrow = (script.Judged(0.5, 1.0, low, high, 1.0, 1.0) for low, high in ((0.8, 1.1), (0.9, 0.95)))
    assert wide.score == pytest.approx(0.3) and narrow.score == pytest.approx(0.05 + 10 * 0.05)
    assert wide.held and not narrow.held


def test_constants_are_drawn_within_their_ranges(script: ModuleType) -> None:
    rng = random.Random(1)
    for _ in range(50):
        drawn = dataclasses.astuple(script.draw(rng))
        assert all(low <= each <= high for each, (low, high) in zip(drawn, script.RANGES, strict=True))


def test_each_network_is_judged_by_constants_of_the_others(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    falling = [script.Task(1, tuple((float(n), 1e4 / n**power) for n in range(1, 65))) for power in (0.2, 0.4)]
    groups = [script.cases(job(script, task)) for task in falling]
    assert len(script.left_out(groups, 3, random.Random(0))) == 6
    assert "score of the best constants for all" in capsys.readouterr().out


def test_without_trials_it_says_so(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(tmp_path)]) == 1
    assert "no job has trials" in capsys.readouterr().err
