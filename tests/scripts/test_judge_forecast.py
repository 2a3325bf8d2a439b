"""scripts/bench/judge_forecast.py: it cuts logs where it says, and compares with what came of them."""

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


def falling(script: ModuleType, power: float, trials: int = 64) -> object:
    """A job of one task that is far from the speed of another, and comes nearer with this power of its trials."""
    slow = tuple((2.0 * n, 1e3 + 9e3 / n**power) for n in range(1, trials + 1))
    fast = tuple((2.0 * n + 1, 1e3) for n in range(1, trials + 1))
    return job(script, script.Task(1, slow, 1.0), script.Task(1, fast, 1.0))


def test_the_power_that_curves_fall_with_is_found(script: ModuleType) -> None:
    slow, quick = (script.fit([script.cases(falling(script, power))]).power for power in (0.2, 0.8))
    assert slow == 0.2 and quick >= 0.6


def test_each_network_is_judged_by_constants_of_the_others(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [script.cases(falling(script, power)) for power in (0.2, 0.2, 0.8)]
    judged = script.left_out(groups)
    others = script.fit(groups[:2])
    assert judged[6:] == [script.judge(case, others) for case in groups[2]]
    assert judged[6:] != [script.judge(case, script.fit(groups)) for case in groups[2]]
    assert "constants that fit all" in capsys.readouterr().out


def test_each_network_counts_once(script: ModuleType) -> None:
    slow, quick = (script.cases(falling(script, power)) for power in (0.2, 0.8))
    assert script.fitted([slow, quick], script.Typical()) == script.fitted([slow * 5, quick], script.Typical())


def test_a_quantile_counts_weights(script: ModuleType) -> None:
    assert [script.quantile((3.0, 1.0, 2.0), (1.0, 1.0, 2.0), part) for part in (0.2, 0.5, 0.75, 0.8)] == [1, 2, 2, 3]


def test_the_interval_ends_where_few_are_beyond(script: ModuleType) -> None:
    cases = [case for n in range(30) for case in script.cases(falling(script, 0.2 + n / 40))]
    typical = script.fit([cases])
    held = [script.judge(case, typical).held for case in cases]
    assert 0.75 <= sum(held) / len(held) <= 0.9


def test_without_trials_it_says_so(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(tmp_path)]) == 1
    assert "no job has 60 trials" in capsys.readouterr().err
