"""A budget of its own for each model, and an end when more trials would gain little."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.planning.automatic import TaskWork, automatic_trials, settled
from autotune.planning.view import JobView, TaskView


def task(*best: float, weight: int = 1, **more: bool) -> TaskView:
    return TaskView("key", weight, len(best), best, **more)


def flat(trials: int, best: float = 1000.0, weight: int = 1) -> TaskView:
    """A task whose first trial was the best."""
    return task(*(best,) * trials, weight=weight)


def job(*tasks: TaskView, patience: int = 0) -> JobView:
    return JobView(1, "cpu", tasks, (), 10_000, 8, patience, min_gain=0.01)


class TestTheBudget:
    def test_grows_with_the_tasks_but_a_small_one_adds_little(self) -> None:
        one, two = automatic_trials([TaskWork(1.0)]), automatic_trials([TaskWork(1.0), TaskWork(1.0)])
        assert one < automatic_trials([TaskWork(1.0), TaskWork(0.001)]) < two < 2 * one

    def test_does_not_depend_on_the_unit_of_work_nor_need_any(self) -> None:
        assert automatic_trials([TaskWork(3.0), TaskWork(1.0)]) == automatic_trials([TaskWork(0.3), TaskWork(0.1)])
        assert automatic_trials([TaskWork(0.0), TaskWork(0.0)]) == automatic_trials([TaskWork(1.0), TaskWork(1.0)])

    def test_what_is_known_of_one_task_is_not_taken_from_another(self) -> None:
        tasks = [TaskWork(1.0), TaskWork(1.0)]
        wanted = automatic_trials(tasks)
        assert automatic_trials([TaskWork(1.0, known=wanted // 2), tasks[1]]) == wanted
        assert automatic_trials([TaskWork(1.0, known=5000), tasks[1]]) == 5000 + wanted // 2

    def test_is_never_zero(self) -> None:
        assert automatic_trials([]) == 1


class TestSettled:
    def test_not_before_the_tasks_have_had_their_trials(self) -> None:
        assert not settled(job(flat(8)))
        assert settled(job(flat(40)))

    def test_a_task_that_takes_most_of_the_time_needs_most_of_the_trials(self) -> None:
        assert settled(job(flat(40, weight=99), flat(2)))
        assert not settled(job(flat(40), flat(2, weight=99)))

    def test_a_task_that_computes_slower_than_the_fastest_needs_more_trials(self) -> None:
        fast, slow = replace(flat(40), gflop=1.0), replace(flat(40), gflop=0.3)
        assert settled(job(fast, fast))
        assert not settled(job(fast, slow))

    def test_what_still_improves_is_not_settled(self) -> None:
        assert not settled(job(task(*(100.0,) * 20, *(90.0,) * 20)))

    def test_a_task_without_a_time_keeps_the_job_open_while_it_may_get_one(self) -> None:
        assert not settled(job(flat(90), task()))
        assert not settled(job(flat(90), task(*(math.inf,) * 9)))
        assert settled(job(flat(90), task(*(math.inf,) * 9, set_aside=True), task(exhausted=True)))

    def test_a_task_that_has_converged_saves_nothing_more(self) -> None:
        view = job(flat(3, weight=5), task(100.0, 50.0, *(49.9,) * 8), patience=1)
        assert not settled(view)
        assert settled(job(task(100.0, 50.0, *(49.9,) * 8), patience=1))

    def test_two_microseconds_are_little_whatever_their_share(self) -> None:
        assert settled(job(flat(6, best=5.0)))
        assert not settled(job(flat(6, best=500.0)))

    def test_a_task_whose_first_time_came_late_counts_as_a_typical_one(self) -> None:
        assert settled(job(task(*(math.inf,) * 20, *(100.0,) * 20)))

    def test_a_fresh_job_goes_by_its_own_trials(self) -> None:
        known = TaskView("key", 1, trials=4, running_best=(100.0,) * 400)
        assert not settled(job(known))
