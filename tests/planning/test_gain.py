"""The next round goes where the most microseconds are to be saved, and stops where none are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune.planning.gain import converged, expected_gain, open_tasks
from autotune.planning.view import JobView, TaskView

INF = math.inf


def task(*best: float, weight: int = 1, exhausted: bool = False, set_aside: bool = False) -> TaskView:
    return TaskView("key", weight, len(best), best, exhausted, set_aside)


def job(*tasks: TaskView) -> JobView:
    return JobView(1, "cpu", tasks, (), trials=100, trials_per_round=2, patience=2, min_gain=0.1)


class TestExpectedGain:
    def test_a_task_without_a_time_promises_most(self) -> None:
        assert expected_gain(task(), 4) == expected_gain(task(INF, INF), 4) == INF

    def test_it_is_the_mean_of_what_was_saved_and_of_what_is_left(self) -> None:
        # Over the last 3 trials 30 us were saved, 10 a trial; 70 us after 4 trials leave 17.5 a trial.
        assert expected_gain(task(100, 90, 80, 70), 1) == pytest.approx((10 + 17.5) / 2)
        assert expected_gain(task(100, 90, 80, 70, weight=3), 1) == pytest.approx(3 * (10 + 17.5) / 2)
        assert expected_gain(task(1000, 100, 100, 100, 100), 1) == pytest.approx(100 / 5 / 2), "of the last rounds"
        assert expected_gain(task(INF, 50), 1) == pytest.approx(50 / 2 / 2), "failures before are no improvement"

    def test_a_task_that_still_improves_or_is_slow_beats_one_that_stands_still_or_is_fast(self) -> None:
        assert expected_gain(task(100, 80, 60), 1) > expected_gain(task(60, 60, 60), 1)
        assert expected_gain(task(900, 900), 1) > expected_gain(task(9, 9), 1)

    def test_of_two_alike_the_one_that_computes_slower_promises_more(self) -> None:
        quick, slow = (replace(task(80, 60), gflop=gflop) for gflop in (6.0, 0.6))
        fastest = job(quick, slow).fastest
        assert expected_gain(slow, 1, fastest) > expected_gain(quick, 1, fastest) > 0
        plain = task(80, 60)
        assert expected_gain(plain, 1, job(plain).fastest) == expected_gain(plain, 1), "of work that is not known"


@pytest.mark.parametrize(
    ("best", "patience", "min_gain", "expected"),
    [
        ((100, 99, 98, 95, 91), 2, 0.1, True),
        ((100, 99, 98, 95, 89), 2, 0.1, False),
        ((100, 100, 100, 100), 2, 0.1, False),  # no more trials than the patience
        ((900, 100, 100, 100, 100, 100), 2, 0.1, True),  # an early gain does not count for ever
        ((100.0,) * 50, 0, 0.1, False),  # no patience means never
        ((100, 100, 100), 1, 0, True),  # with no min_gain any gain counts, and none does not
        ((100, 100, 99.9), 1, 0, False),
        ((INF,) * 5, 2, 0.1, True),  # it only ever fails
        ((INF, INF, INF, INF, 70), 2, 0.1, False),
    ],
)
def test_a_task_has_converged_that_gained_too_little_in_all_its_patience(
    best: tuple[float, ...], patience: int, min_gain: float, expected: bool
) -> None:
    assert converged(task(*best), per_round=2, patience=patience, min_gain=min_gain) is expected


class TestOpenTasks:
    def test_they_are_those_that_more_trials_could_improve(self) -> None:
        flat = task(*[100.0] * 5)
        tasks = (task(), task(50), task(50, exhausted=True), task(50, set_aside=True), flat)
        assert open_tasks(job(*tasks)) == (0, 1)

    def test_a_job_without_tasks_has_none(self) -> None:
        assert open_tasks(job()) == ()
