"""The planner shares the machine out: nothing twice, nothing over budget, nothing forgotten, nothing stuck."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from autotune.planning import planner
from autotune.planning.planner import CPU, TASK, TURN
from autotune.planning.policies import get
from autotune.planning.view import (
    JobView,
    Kind,
    MachineResources,
    RunningView,
    StageId,
    StagePlan,
    StageView,
    Start,
    TaskView,
)
from autotune.reasons import Reason

ONE = MachineResources((0,))
TWO = MachineResources((0, 1))
GPU = MachineResources((0, 1), ("cpu", "cuda:0"))
plan = partial(planner.plan, policy=get("interleave"))


def task(key: str = "", best: float = 100.0, trials: int = 0, weight: int = 1, **more: Any) -> TaskView:
    return TaskView(key, weight, trials, (best,) * trials, **more)


def job(*rounds: tuple[Kind, TaskView], id: int = 1, device: str = "cpu", trials: int = 64, **more: Any) -> JobView:
    """A job by its tasks, each with the stage that its round is at."""
    tasks = tuple(replace(task, key=task.key or f"{id}/{index}") for index, (_, task) in enumerate(rounds))
    stages = tuple(stage(kind, index, id) for index, (kind, _) in enumerate(rounds))
    return JobView(id, device, tasks, stages, trials, trials_per_round=4, patience=0, min_gain=0.01, **more)


def stage(kind: Kind, task: int = 0, job: int = 1, round: int = 0) -> StageView:
    return StageView(StageId(job, task, round), kind, 4 if kind in ("build", "measure") else 0)


def running(kind: Kind, *cpus: int, job: int = 1, task: int = 0, count: int = 0) -> RunningView:
    return RunningView(StageId(job, task, 0), kind, cpus, count)


def started(plan: StagePlan) -> list[tuple[int, int, Kind]]:
    return [(start.stage.id.job, start.stage.id.task, start.stage.kind) for start in plan.starts]


def kinds(plan: StagePlan) -> list[Kind]:
    return [start.stage.kind for start in plan.starts]


class TestFinishBeforeBegin:
    @pytest.mark.parametrize("later", ["train", "measure", "build"])
    def test_a_round_on_its_way_goes_before_a_new_one_which_gets_the_rest(self, later: Kind) -> None:
        view = job(("search", task()), (later, task()))
        assert kinds(plan([view], [], ONE)) == [later]
        assert kinds(plan([view], [], TWO)) == ([later] if later == "measure" else [later, "search"])

    def test_training_goes_before_building(self) -> None:
        assert kinds(plan([job(("build", task()), ("train", task()))], [], ONE)) == ["train"]

    def test_of_two_rounds_the_one_that_began_first_goes_on(self) -> None:
        view = replace(
            job(("build", task()), ("build", task())), stages=(stage("build", 0, round=3), stage("build", 1))
        )
        assert started(plan([view], [], ONE)) == [(1, 1, "build")]

    def test_a_job_trains_one_model_at_a_time(self) -> None:
        assert kinds(plan([job(("train", task()), ("train", task()))], [], TWO)) == ["train"]

    def test_no_more_rounds_are_begun_than_the_cpus_can_keep_up_with(self) -> None:
        views = [job(*[("search", task())] * 20), job(*[("build", task())] * 3, id=2)]
        others = [running("build", 0, job=2, task=n) for n in range(3)]
        assert plan(views, others[:1], MachineResources((0,))).starts == ()
        fewer = job(*[("build", task())] * 2, id=2)
        assert kinds(plan([views[0], fewer], [running("build", 0, job=2), running("build", 1, job=2, task=1)],
                          MachineResources((0, 1, 2)))) == ["search"]  # fmt: skip


class TestMeasuringOnTheCpu:
    def test_it_gets_every_cpu_and_nothing_starts_beside_it(self) -> None:
        view = job(("measure", task()), ("build", task()), ("search", task()), ("measure", task()))
        assert [(start.stage.kind, start.cpus) for start in plan([view], [], TWO).starts] == [("measure", (0, 1))]
        assert plan([view], [running("measure", 0, 1)], TWO).starts == ()

    def test_it_waits_until_all_cpus_are_free(self) -> None:
        view = job(("measure", task()), ("build", task()))
        assert "measure" not in kinds(plan([view], [running("build", 0, task=1)], TWO))

    def test_when_nothing_else_can_go_on_no_cpu_is_given_away(self) -> None:
        alone = job(("measure", task()), ("build", task()), trials=8)
        assert plan([alone], [running("build", 0, task=1)], TWO).starts == ()

    def test_builds_go_on_until_enough_measurements_have_gathered(self) -> None:
        few = job(("build", task()), *[("measure", task())] * 3, ("build", task()))
        many = job(("build", task()), *[("measure", task())] * 4, ("build", task()))
        assert kinds(plan([few], [running("build", 0)], TWO)) == ["build"]
        assert plan([many], [running("build", 0)], TWO).starts == ()


class TestMeasuringOnCuda:
    def test_it_takes_one_cpu_and_others_go_on_beside_it(self) -> None:
        gpu = job(("measure", task()), device="cuda")
        cpu = job(("build", task()), id=2)
        planned = plan([gpu, cpu], [], GPU)
        assert [(start.stage.id.job, len(start.cpus)) for start in planned.starts] == [(1, 1), (2, 1)]

    def test_a_device_measures_one_round_at_a_time(self) -> None:
        first, second = (job(("measure", task()), id=id, device="cuda") for id in (1, 2))
        planned = plan([first, second], [], GPU)
        assert started(planned) == [(1, 0, "measure")]
        assert planned.waits == {2: Reason("device", device="cuda")}

    @pytest.mark.parametrize("rounds", [1, 30])
    def test_without_a_device_it_waits_and_says_so_and_takes_no_room_from_others(self, rounds: int) -> None:
        gpu = job(*[("measure", task())] * rounds, device="cuda", trials=999)
        planned = plan([gpu, job(("search", task()), id=2)], [], TWO)
        assert started(planned) == [(2, 0, "search")]
        assert planned.waits == {1: Reason("no-device", device="cuda")}


class TestSharedTasks:
    def test_a_task_of_two_jobs_is_begun_once(self) -> None:
        first, second = (job(("search", task("same")), id=id) for id in (1, 2))
        planned = plan([first, second], [], TWO)
        assert started(planned) == [(1, 0, "search")]
        assert planned.waits == {2: TASK}

    @pytest.mark.parametrize("at", ["build", "measure", "train"])
    def test_it_is_busy_while_a_round_of_it_waits_or_runs(self, at: Kind) -> None:
        other = job((at, task("same")), id=2)
        view = job(("search", task("same")))
        assert (1, 0, "search") not in started(plan([other, view], [], TWO))
        assert (1, 0, "search") not in started(plan([other, view], [running(at, 0, job=2)], TWO))

    def test_tasks_of_its_own_go_on(self) -> None:
        other = job(("train", task("same")), id=2)
        view = job(("search", task("same")), ("search", task("own")))
        assert started(plan([other, view], [running("train", 0, job=2)], TWO)) == [(1, 1, "search")]

    def test_one_job_with_the_same_task_twice_begins_it_once(self) -> None:
        assert started(plan([job(("search", task("same")), ("search", task("same")))], [], TWO)) == [(1, 0, "search")]

    def test_a_task_that_another_job_set_aside_is_not_busy(self) -> None:
        other = job(("build", task("same", set_aside=True)), id=2)
        assert started(plan([other, job(("search", task("same")))], [], TWO)) == [(1, 0, "search")]


class TestBudget:
    def test_a_search_is_asked_for_no_more_than_is_left(self) -> None:
        planned = plan([job(("search", task(trials=30)), trials=33)], [], ONE)
        assert [start.count for start in planned.starts] == [3]

    def test_searches_that_start_together_share_what_is_left(self) -> None:
        planned = plan([job(*[("search", task(trials=10))] * 4, trials=46)], [], MachineResources((0, 1, 2, 3)))
        assert [start.count for start in planned.starts] == [4, 2]

    def test_the_first_rounds_of_a_small_budget_reach_every_task(self) -> None:
        planned = plan([job(*[("search", task())] * 5, trials=5)], [], MachineResources(tuple(range(5))))
        assert sorted(start.stage.id.task for start in planned.starts) == [0, 1, 2, 3, 4]

    def test_an_untried_task_goes_before_one_whose_trials_failed(self) -> None:
        failing = task(best=math.inf, trials=1)
        assert started(plan([job(("search", failing), ("search", task()))], [], ONE)) == [(1, 1, "search")]

    def test_converged_tasks_get_no_more(self) -> None:
        view = replace(job(("search", task(best=900, trials=9)), ("search", task(best=1, trials=8))), patience=2)
        assert started(plan([view], [], TWO)) == [(1, 1, "search")]

    @pytest.mark.parametrize("flag", ["exhausted", "set_aside"])
    def test_closed_tasks_get_no_more(self, flag: str) -> None:
        assert plan([job(("search", task(**{flag: True})))], [], ONE).starts == ()

    @pytest.mark.parametrize("at", ["build", "measure", "train"])
    def test_a_task_set_aside_in_mid_round_stays_there(self, at: Kind) -> None:
        view = job((at, task(set_aside=True)), ("search", task()))
        assert started(plan([view], [], ONE)) == [(1, 1, "search")]


class TestPriority:
    def test_the_job_of_higher_priority_goes_first_and_the_other_uses_what_it_leaves(self) -> None:
        views = [job(("search", task())), job(("search", task()), id=2, priority=1)]
        assert started(plan(views, [], ONE)) == [(2, 0, "search")]
        assert started(plan(views, [], TWO)) == [(2, 0, "search"), (1, 0, "search")]

    def test_the_older_of_equals_goes_first(self) -> None:
        views = [job(("search", task()), id=id) for id in (2, 1)]
        assert started(plan(views, [], ONE)) == [(1, 0, "search")]

    def test_within_a_job_the_task_with_most_to_gain_goes_first(self) -> None:
        rounds = [("search", task(best=best, trials=4)) for best in (10, 500, 90)]
        assert started(plan([job(*rounds)], [], ONE)) == [(1, 1, "search")]  # type: ignore[arg-type]


class TestReasons:
    @pytest.mark.parametrize(
        ("at", "reason"),
        [
            ("build", CPU),
            ("train", CPU),
            ("measure", Reason("device", device="cpu")),
            ("search", TURN),
        ],
    )
    def test_a_job_that_neither_runs_nor_starts_has_one(self, at: Kind, reason: Reason) -> None:
        first = job(("build", task()))
        assert plan([first, job((at, task()), id=2)], [running("build", 0)], ONE).waits == {2: reason}

    def test_a_job_that_runs_or_starts_has_none(self) -> None:
        runs = job(("build", task()))
        starts = job(("search", task()), id=2)
        assert plan([runs, starts], [running("build", 0)], TWO).waits == {}

    def test_a_job_whose_budget_is_spent_waits_for_no_task_of_another(self) -> None:
        assert plan([job(("search", task(trials=64)))], [], ONE).waits == {1: TURN}


class TestPurity:
    def test_no_jobs_is_no_plan(self) -> None:
        assert plan([], [], TWO) == StagePlan((), {})

    def test_a_running_stage_of_a_job_that_is_gone_keeps_its_cpu(self) -> None:
        planned = plan([job(("search", task()), ("search", task()))], [running("search", 1, job=9)], TWO)
        assert [start.cpus for start in planned.starts] == [(0,)]


def test_a_start_names_the_stage_it_starts() -> None:
    view = job(("build", task()))
    assert plan([view], [], ONE).starts == (Start(view.stages[0], (0,)),)


class TestConfirming:
    def test_it_has_the_device_to_itself_and_goes_before_measurements(self) -> None:
        stages = (StageView(StageId(1, 0, 0), "measure", 4), StageView(StageId(1, 1, 3), "confirm"))
        view = JobView(1, "cpu", (TaskView("a", 1), TaskView("b", 1)), stages, 64, 8, 0, 0.01)
        (start,) = plan([view], [], TWO).starts
        assert (start.stage.kind, start.cpus, start.device, start.count) == ("confirm", (0, 1), "cpu", 0)

    def test_it_waits_until_the_cpus_are_free(self) -> None:
        view = JobView(1, "cpu", (TaskView("a", 1),), (StageView(StageId(1, 0, 3), "confirm"),), 64, 8, 0, 0.01)
        busy = RunningView(StageId(2, 0, 0), "build", (0,))
        planned = plan([view], [busy], TWO)
        assert (planned.starts, planned.waits[1].kind) == ((), "device")
