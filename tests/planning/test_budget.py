"""A job starts no more trials than it may, reaches each of its tasks, and knows when it is over."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from autotune.planning.budget import TaskWork, automatic_trials, batch, ended, settled
from autotune.planning.view import JobView, Kind, RunningView, StageId, StageView, TaskView


def task(trials: int = 0, **more: Any) -> TaskView:
    return TaskView("key", 1, trials, (100.0,) * trials, **more)


def stage(task: int, kind: Kind, candidates: int = 0, job: int = 1) -> StageView:
    return StageView(StageId(job, task, 0), kind, candidates)


def job(*tasks: TaskView, stages: tuple[StageView, ...] = (), trials: int = 40, per_round: int = 8) -> JobView:
    return JobView(1, "cpu", tasks, stages, trials, per_round, patience=0, min_gain=0.01)


def running(task: int, kind: Kind, count: int = 0, job: int = 1) -> RunningView:
    return RunningView(StageId(job, task, 0), kind, (0,), count)


def timed(*best: float, weight: int = 1, **more: bool) -> TaskView:
    """A task of which the best time after each trial is known."""
    return TaskView("key", weight, len(best), best, **more)


def flat(trials: int, best: float = 1000.0, weight: int = 1) -> TaskView:
    """A task whose first trial was the best."""
    return timed(*(best,) * trials, weight=weight)


def asking(*tasks: TaskView, patience: int = 0) -> JobView:
    """A job whose budget is no limit, so that only the gain decides."""
    return JobView(1, "cpu", tasks, (), 10_000, 8, patience, min_gain=0.01)


class TestBatch:
    def test_it_is_a_round_or_what_is_left_of_the_budget(self) -> None:
        assert [batch(job(task(trials)), 0) for trials in (8, 35, 50)] == [8, 5, 0]
        view = job(task(20), task(8), stages=(stage(0, "measure", 8),))
        assert batch(view, 8 + 3) == 40 - 28 - 8 - 3, "what is in flight counts"
        assert batch(view, 8 + 4) == 0

    def test_while_a_task_is_untried_it_leaves_the_others_their_share(self) -> None:
        untried = [task() for _ in range(10)]
        assert batch(job(*untried, trials=20), 0) * len(untried) <= 20
        assert batch(job(*untried, trials=3), 0) == 1, "while budget is left"
        assert batch(job(task(8), task(exhausted=True)), 0) == 8, "what cannot be tuned asks for no share"
        assert batch(job(task(8), *[task(set_aside=True)] * 9), 0) == 8

    def test_while_a_task_is_untried_it_is_a_quarter_of_a_round_if_that_is_worth_a_search(self) -> None:
        untried = job(task(), task(8), trials=1000)
        assert [batch(untried, 0, worthwhile) for worthwhile in (1, 3, 100)] == [2, 3, 8]
        assert batch(job(task(2), task(8), trials=1000), 0, 1) == 8

    def test_it_at_most_doubles_the_trials_of_its_task_but_for_half_a_round(self) -> None:
        view = job(task(8), trials=1000)
        assert [batch(view, 0, tried=tried) for tried in (1, 4, 5, 8, 100)] == [4, 4, 5, 8, 8]
        assert batch(job(task(8), trials=1000, per_round=1), 0, tried=1) == 1


class TestEnded:
    def test_a_job_ends_with_its_budget_and_goes_on_before(self) -> None:
        reasons = [ended(job(task(trials)), []) for trials in (39, 40, 47)]
        assert reasons == [None, "budget-used", "budget-used"], "trials of another job may carry it past its budget"

    def test_a_job_ends_when_no_task_is_open(self) -> None:
        assert ended(job(task(8, exhausted=True)), []) == "no-improvement"
        assert ended(job(task(exhausted=True)), []) == ended(job(), []) == "nothing-to-tune"

    def test_a_round_on_its_way_is_finished_first(self) -> None:
        assert ended(job(task(40), stages=(stage(0, "train"),)), []) is None
        assert ended(job(task(40)), [running(0, "train")]) is None

    def test_other_jobs_waiting_searches_and_tasks_set_aside_do_not_keep_it_alive(self) -> None:
        assert ended(job(task(40)), [running(0, "train", job=2)]) == "budget-used"
        assert ended(job(task(40), stages=(stage(0, "search"),)), []) == "budget-used"
        assert ended(job(task(8, set_aside=True), stages=(stage(0, "build", 4),)), []) == "no-improvement"

    @pytest.mark.parametrize(("flag", "reason"), [("time_used", "time-used"), ("settled", "little-to-gain")])
    def test_a_job_whose_time_is_used_or_that_would_gain_little_begins_no_round_and_ends(
        self, flag: str, reason: str
    ) -> None:
        view = replace(job(task(8)), **{flag: True})
        assert (batch(view, 0), ended(view, [])) == (0, reason)
        assert ended(replace(view, stages=(stage(0, "measure", 4),)), []) is None, "its round is finished first"
        assert ended(replace(job(task(40)), time_used=True), []) == "budget-used", "which is what counts"
        assert ended(replace(job(task(exhausted=True)), settled=True), []) == "nothing-to-tune"


class TestStopAt:
    def test_while_it_is_confirmed_no_round_begins(self) -> None:
        view = job(task(8), task(8), stages=(stage(0, "confirm"), stage(1, "search")))
        assert batch(view, 0) == 8, "nothing depends on it"
        view = replace(view, has_stop_at=True)
        assert (batch(view, 0), ended(view, [])) == (0, None)

    def test_once_met_the_job_ends_for_that_reason(self) -> None:
        view = replace(job(task(40)), stop_at_met=True)
        assert (batch(view, 0), ended(view, [])) == (0, "stop-at-met")


class TestAutomaticTrials:
    def test_grows_with_the_tasks_but_a_small_one_adds_little(self) -> None:
        one = automatic_trials([TaskWork(1.0)])
        two = automatic_trials([TaskWork(1.0), TaskWork(1.0)])
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


class TestMoreTrialsWouldGainLittle:
    def test_not_before_the_tasks_have_had_their_trials(self) -> None:
        assert not settled(asking(flat(8)))
        assert settled(asking(flat(40)))

    def test_a_task_that_takes_most_of_the_time_needs_most_of_the_trials(self) -> None:
        assert settled(asking(flat(40, weight=99), flat(2)))
        assert not settled(asking(flat(40), flat(2, weight=99)))

    def test_a_task_that_computes_slower_than_the_fastest_needs_more_trials(self) -> None:
        fast = replace(flat(40), gflop=1.0)
        slow = replace(flat(40), gflop=0.3)
        assert settled(asking(fast, fast))
        assert not settled(asking(fast, slow))

    def test_what_still_improves_is_not_settled(self) -> None:
        assert not settled(asking(timed(*(100.0,) * 20, *(90.0,) * 20)))

    def test_a_task_without_a_time_keeps_the_job_open_while_it_may_get_one(self) -> None:
        assert not settled(asking(flat(90), timed()))
        assert not settled(asking(flat(90), timed(*(math.inf,) * 9)))
        assert settled(asking(flat(90), timed(*(math.inf,) * 9, set_aside=True), timed(exhausted=True)))

    def test_a_task_that_has_converged_saves_nothing_more(self) -> None:
        view = asking(flat(3, weight=5), timed(100.0, 50.0, *(49.9,) * 8), patience=1)
        assert not settled(view)
        assert settled(asking(timed(100.0, 50.0, *(49.9,) * 8), patience=1))

    def test_two_microseconds_are_little_whatever_their_share(self) -> None:
        assert settled(asking(flat(6, best=5.0)))
        assert not settled(asking(flat(6, best=500.0)))

    def test_a_task_whose_first_time_came_late_counts_as_a_typical_one(self) -> None:
        assert settled(asking(timed(*(math.inf,) * 20, *(100.0,) * 20)))

    def test_a_fresh_job_goes_by_its_own_trials(self) -> None:
        view = TaskView("key", 1, trials=4, running_best=(100.0,) * 400)
        assert not settled(asking(view))
