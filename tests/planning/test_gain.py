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
    def test_an_untried_task_promises_most(self) -> None:
        assert expected_gain(task(), 4) == INF

    def test_a_task_that_never_ran_well_promises_most(self) -> None:
        assert expected_gain(task(INF, INF), 4) == INF

    def test_it_grows_with_the_weight(self) -> None:
        assert expected_gain(task(50, 40, weight=3), 1) == pytest.approx(3 * expected_gain(task(50, 40), 1))

    def test_it_is_the_mean_of_what_was_saved_and_of_what_is_left(self) -> None:
        # Over the last 3 trials 30 us were saved, 10 a trial; 70 us after 4 trials leave 17.5 a trial.
        assert expected_gain(task(100, 90, 80, 70), 1) == pytest.approx((10 + 17.5) / 2)

    def test_only_the_last_rounds_count(self) -> None:
        stale = task(1000, 100, 100, 100, 100)
        assert expected_gain(stale, 1) == pytest.approx(100 / 5 / 2)

    def test_a_task_that_still_improves_beats_one_that_stands_still(self) -> None:
        assert expected_gain(task(100, 80, 60), 1) > expected_gain(task(60, 60, 60), 1)

    def test_a_slow_task_beats_a_fast_one(self) -> None:
        assert expected_gain(task(900, 900), 1) > expected_gain(task(9, 9), 1)

    def test_of_two_alike_the_one_that_computes_slower_promises_more(self) -> None:
        quick, slow = (replace(task(80, 60), gflop=gflop) for gflop in (6.0, 0.6))
        fastest = job(quick, slow).fastest
        assert expected_gain(slow, 1, fastest) > expected_gain(quick, 1, fastest) > 0

    def test_tasks_of_unknown_work_are_not_judged_by_speed(self) -> None:
        plain = task(80, 60)
        assert expected_gain(plain, 1, job(plain).fastest) == expected_gain(plain, 1)

    def test_failures_before_the_first_success_count_as_no_improvement(self) -> None:
        assert expected_gain(task(INF, 50), 1) == pytest.approx(50 / 2 / 2)


class TestConverged:
    def test_a_task_that_gained_less_than_min_gain_in_all_its_patience_has(self) -> None:
        assert converged(task(100, 99, 98, 95, 91), per_round=2, patience=2, min_gain=0.1)

    def test_a_task_that_gained_more_has_not(self) -> None:
        assert not converged(task(100, 99, 98, 95, 89), per_round=2, patience=2, min_gain=0.1)

    def test_it_takes_more_trials_than_the_patience(self) -> None:
        assert not converged(task(100, 100, 100, 100), per_round=2, patience=2, min_gain=0.1)

    def test_an_early_gain_does_not_count_for_ever(self) -> None:
        assert converged(task(900, 100, 100, 100, 100, 100), per_round=2, patience=2, min_gain=0.1)

    def test_no_patience_means_never(self) -> None:
        assert not converged(task(*[100.0] * 50), per_round=2, patience=0, min_gain=0.1)

    def test_with_no_min_gain_any_gain_counts_and_none_does_not(self) -> None:
        assert converged(task(100, 100, 100), per_round=2, patience=1, min_gain=0)
        assert not converged(task(100, 100, 99.9), per_round=2, patience=1, min_gain=0)

    def test_a_task_that_only_ever_fails_is_given_up(self) -> None:
        assert converged(task(*[INF] * 5), per_round=2, patience=2, min_gain=0.1)

    def test_a_first_success_after_failures_is_a_gain(self) -> None:
        assert not converged(task(INF, INF, INF, INF, 70), per_round=2, patience=2, min_gain=0.1)


class TestOpenTasks:
    def test_they_are_those_that_more_trials_could_improve(self) -> None:
        flat = task(*[100.0] * 5)
        tasks = (task(), task(50), task(50, exhausted=True), task(50, set_aside=True), flat)
        assert open_tasks(job(*tasks)) == (0, 1)

    def test_a_job_without_tasks_has_none(self) -> None:
        assert open_tasks(job()) == ()
