"""The planner shares the machine out: nothing twice, nothing over budget, nothing forgotten, nothing stuck."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.planning import planner
from autotune.planning.budget import ended, in_flight
from autotune.planning.policies import get
from autotune.planning.view import (
    JobView,
    Kind,
    MachineResources,
    Plan,
    RunningView,
    StageId,
    StageView,
    Start,
    TaskView,
)
from autotune.planning.waiting import CPU, TASK, TURN, for_device, lacks
from autotune.reasons import Reason

ONE = MachineResources((0,))
TWO = MachineResources((0, 1))
GPU = MachineResources((0, 1), ("cpu", "cuda:0"))
plan = partial(planner.plan, policy=get("interleave"))
NEXT: dict[Kind, Kind] = {"search": "build", "build": "measure", "measure": "train", "train": "search"}


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


def started(plan: Plan) -> list[tuple[int, int, Kind]]:
    return [(start.stage.id.job, start.stage.id.task, start.stage.kind) for start in plan.starts]


def kinds(plan: Plan) -> list[Kind]:
    return [start.stage.kind for start in plan.starts]


class TestFinishBeforeBegin:
    @pytest.mark.parametrize("later", ["train", "measure", "build"])
    def test_a_round_on_its_way_goes_before_a_new_one(self, later: Kind) -> None:
        view = job(("search", task()), (later, task()))
        assert kinds(plan([view], [], ONE)) == [later]

    def test_the_rest_of_the_cpus_goes_to_new_rounds(self) -> None:
        view = job(("search", task()), ("build", task()))
        assert kinds(plan([view], [], TWO)) == ["build", "search"]

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
    def test_it_gets_every_cpu(self) -> None:
        found = plan([job(("measure", task()))], [], TWO)
        assert [(start.stage.kind, start.cpus) for start in found.starts] == [("measure", (0, 1))]

    def test_nothing_starts_beside_it(self) -> None:
        view = job(("measure", task()), ("build", task()), ("search", task()))
        assert kinds(plan([view], [], TWO)) == ["measure"]
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

    def test_only_one_measurement_starts_at_a_time(self) -> None:
        assert kinds(plan([job(("measure", task()), ("measure", task()))], [], TWO)) == ["measure"]


class TestMeasuringOnCuda:
    def test_it_takes_one_cpu_and_others_go_on_beside_it(self) -> None:
        gpu, cpu = job(("measure", task()), device="cuda"), job(("build", task()), id=2)
        found = plan([gpu, cpu], [], GPU)
        assert [(start.stage.id.job, len(start.cpus)) for start in found.starts] == [(1, 1), (2, 1)]

    def test_a_device_measures_one_round_at_a_time(self) -> None:
        first, second = (job(("measure", task()), id=id, device="cuda") for id in (1, 2))
        found = plan([first, second], [], GPU)
        assert started(found) == [(1, 0, "measure")]
        assert found.waits == {2: for_device("cuda")}

    def test_without_a_device_it_waits_and_says_so_while_others_go_on(self) -> None:
        gpu, cpu = job(("measure", task()), device="cuda"), job(("search", task()), id=2)
        found = plan([gpu, cpu], [], TWO)
        assert started(found) == [(2, 0, "search")]
        assert found.waits == {1: lacks("cuda")}

    def test_without_a_device_its_rounds_take_no_room_from_others(self) -> None:
        gpu, cpu = job(*[("measure", task())] * 30, device="cuda", trials=999), job(("search", task()), id=2)
        assert started(plan([gpu, cpu], [], TWO)) == [(2, 0, "search")]


class TestSharedTasks:
    def test_a_task_of_two_jobs_is_begun_once(self) -> None:
        first, second = (job(("search", task("same")), id=id) for id in (1, 2))
        found = plan([first, second], [], TWO)
        assert started(found) == [(1, 0, "search")]
        assert found.waits == {2: TASK}

    @pytest.mark.parametrize("at", ["build", "measure", "train"])
    def test_it_is_busy_while_a_round_of_it_waits_or_runs(self, at: Kind) -> None:
        other, view = job((at, task("same")), id=2), job(("search", task("same")))
        assert (1, 0, "search") not in started(plan([other, view], [], TWO))
        assert (1, 0, "search") not in started(plan([other, view], [running(at, 0, job=2)], TWO))

    def test_tasks_of_its_own_go_on(self) -> None:
        other, view = job(("train", task("same")), id=2), job(("search", task("same")), ("search", task("own")))
        assert started(plan([other, view], [running("train", 0, job=2)], TWO)) == [(1, 1, "search")]

    def test_one_job_with_the_same_task_twice_begins_it_once(self) -> None:
        assert started(plan([job(("search", task("same")), ("search", task("same")))], [], TWO)) == [(1, 0, "search")]

    def test_a_task_that_another_job_set_aside_is_not_busy(self) -> None:
        other = job(("build", task("same", set_aside=True)), id=2)
        assert started(plan([other, job(("search", task("same")))], [], TWO)) == [(1, 0, "search")]


class TestBudget:
    def test_a_search_is_asked_for_no_more_than_is_left(self) -> None:
        found = plan([job(("search", task(trials=30)), trials=33)], [], ONE)
        assert [start.count for start in found.starts] == [3]

    def test_searches_that_start_together_share_what_is_left(self) -> None:
        found = plan([job(*[("search", task(trials=10))] * 4, trials=46)], [], MachineResources((0, 1, 2, 3)))
        assert [start.count for start in found.starts] == [4, 2]

    def test_the_first_rounds_of_a_small_budget_reach_every_task(self) -> None:
        found = plan([job(*[("search", task())] * 5, trials=5)], [], MachineResources(tuple(range(5))))
        assert sorted(start.stage.id.task for start in found.starts) == [0, 1, 2, 3, 4]

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
    def test_the_job_of_higher_priority_goes_first(self) -> None:
        low, high = job(("search", task())), job(("search", task()), id=2, priority=1)
        assert started(plan([low, high], [], ONE)) == [(2, 0, "search")]

    def test_the_older_of_equals_goes_first(self) -> None:
        views = [job(("search", task()), id=id) for id in (2, 1)]
        assert started(plan(views, [], ONE)) == [(1, 0, "search")]

    def test_within_a_job_the_task_with_most_to_gain_goes_first(self) -> None:
        rounds = [("search", task(best=best, trials=4)) for best in (10, 500, 90)]
        assert started(plan([job(*rounds)], [], ONE)) == [(1, 1, "search")]  # type: ignore[arg-type]

    def test_a_lower_priority_uses_what_the_higher_leaves(self) -> None:
        low, high = job(("search", task())), job(("search", task()), id=2, priority=1)
        assert started(plan([low, high], [], TWO)) == [(2, 0, "search"), (1, 0, "search")]


class TestReasons:
    @pytest.mark.parametrize(
        ("at", "reason"),
        [
            ("build", CPU),
            ("train", CPU),
            ("measure", for_device("cpu")),
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


class TestPurity:
    def test_no_jobs_is_no_plan(self) -> None:
        assert plan([], [], TWO) == Plan((), {})

    def test_a_running_stage_of_a_job_that_is_gone_keeps_its_cpu(self) -> None:
        found = plan([job(("search", task()), ("search", task()))], [running("search", 1, job=9)], TWO)
        assert [start.cpus for start in found.starts] == [(0,)]


@dataclass
class Round:
    """The stage that a round of the simulated queue is at."""

    kind: Kind = "search"
    number: int = 0
    candidates: int = 0


@dataclass
class Model:
    """A simulated job: what a view of it is made from."""

    id: int
    device: str
    keys: list[str]
    trials: int
    priority: int
    patience: int
    rounds: list[Round] = field(default_factory=list)
    exhausted: set[int] = field(default_factory=set)
    aside: set[int] = field(default_factory=set)


@dataclass
class Busy:
    """A stage that runs in the simulation until a moment."""

    view: RunningView
    until: int


@dataclass
class Luck:
    """What happens to stages: they take time, searches find fewer candidates than asked, some stages fail."""

    draw: Any

    def duration(self) -> int:
        return self.draw(st.integers(1, 9))

    def fails(self) -> bool:
        return self.draw(st.integers(0, 19)) == 0

    def proposed(self, asked: int) -> int:
        return self.draw(st.sampled_from([asked] * 6 + [asked // 2, 0]))

    def time(self) -> float:
        return self.draw(st.sampled_from([100.0, 90.0, 50.0, 10.0, math.inf]))


class EveryTrialFails:
    """All stages take as long, and no candidate ever runs."""

    def duration(self) -> int:
        return 1

    def fails(self) -> bool:
        return False

    def proposed(self, asked: int) -> int:
        return asked

    def time(self) -> float:
        return math.inf


@dataclass
class World:
    """A queue that the planner drives."""

    machine: MachineResources
    jobs: list[Model]
    luck: Luck | EveryTrialFails
    policy: str = "interleave"
    now: int = 0
    logs: dict[str, list[float]] = field(default_factory=dict)
    busy: list[Busy] = field(default_factory=list)
    failures: Counter[StageId] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.kept = planner.Planner(self.machine, get(self.policy))
        self.asked_later = planner.Planner(self.machine, get(self.policy))

    def views(self) -> list[JobView]:
        return [self._view(job) for job in self.jobs]

    def _view(self, job: Model) -> JobView:
        tasks = tuple(self._task(job, index) for index in range(len(job.keys)))
        stages = tuple(
            StageView(StageId(job.id, index, at.number), at.kind, at.candidates) for index, at in enumerate(job.rounds)
        )
        return JobView(job.id, job.device, tasks, stages, job.trials, 4, job.patience, 0.01, job.priority)

    def _task(self, job: Model, index: int) -> TaskView:
        log = self.logs.get(job.keys[index], [])
        best = tuple(min(log[: count + 1]) for count in range(len(log)))
        aside = index in job.aside
        return TaskView(job.keys[index], index % 3 + 1, len(log), best, index in job.exhausted, aside)

    def tick(self) -> bool:
        """Plan, start and end the stages that are due; whether anything runs."""
        held = [busy.view for busy in self.busy]
        views = [view for view in self.views() if ended(view, held) is None]
        found = self._planned(views, held)
        for start in found.starts:
            view = RunningView(start.stage.id, start.stage.kind, start.cpus, start.count, start.device)
            self.busy.append(Busy(view, self.now + self.luck.duration()))
        self._check(views, found)
        if not self.busy:
            return False
        self.now = min(busy.until for busy in self.busy)
        for busy in [busy for busy in self.busy if busy.until == self.now]:
            self.busy.remove(busy)
            self._end(busy.view)
        return True

    def _planned(self, views: list[JobView], held: list[RunningView]) -> Plan:
        before = copy.deepcopy((views, held, self.machine))
        found = plan(views, held, self.machine, policy=get(self.policy))
        assert (views, held, self.machine) == before
        assert plan(list(reversed(views)), held, self.machine, policy=get(self.policy)) == found
        assert self.kept.plan(views, held) == found, "what is kept between two plans must not change them"
        assert self.asked_later.choose(views, held) == replace(found, waits={})
        started = [RunningView(start.stage.id, start.stage.kind, start.cpus, start.count) for start in found.starts]
        assert self.asked_later.waits(0.0, [*held, *started]) == found.waits
        return found

    def _check(self, views: list[JobView], found: Plan) -> None:
        held = [busy.view for busy in self.busy]
        self._check_cpus(held)
        self._check_keys(held)
        begins = {start.stage.id.job for start in found.starts if start.stage.kind == "search"}
        for view in views:
            # Trials of another job count too, and may carry it past its budget; but then it begins nothing more.
            assert view.id not in begins or view.trials_done + in_flight(view, held) <= view.trials
            busy = any(item.id.job == view.id for item in held)
            assert busy == (view.id not in found.waits)
        assert found.starts or self.busy or all(reason.kind == "no-device" for reason in found.waits.values())
        assert all(start.count > 0 for start in found.starts if start.stage.kind == "search")

    def _check_cpus(self, held: list[RunningView]) -> None:
        cpus = [cpu for item in held for cpu in item.cpus]
        assert len(cpus) == len(set(cpus)) and set(cpus) <= set(self.machine.cpus)
        assert all(item.cpus for item in held)
        devices = {job.id: job.device for job in self.jobs}
        measures = [devices[item.id.job] for item in held if item.kind == "measure"]
        assert len(measures) == len(set(measures)) and set(measures) <= set(self.machine.kinds)
        assert "cpu" not in measures or len(held) == 1

    def _check_keys(self, held: list[RunningView]) -> None:
        ids = {item.id for item in held}
        for job in self.jobs:
            live = [n for n in range(len(job.keys)) if n not in job.aside]
            ids |= {StageId(job.id, n, job.rounds[n].number) for n in live if job.rounds[n].kind != "search"}
        keys = [job.keys[id.task] for job in self.jobs for id in ids if id.job == job.id]
        assert len(keys) == len(set(keys))

    def _end(self, view: RunningView) -> None:
        job = next(job for job in self.jobs if job.id == view.id.job)
        if self.luck.fails():
            self.failures[view.id] += 1
            if self.failures[view.id] == 3:
                job.aside.add(view.id.task)
            return
        at = job.rounds[view.id.task]
        if view.kind == "search":
            at.candidates = self.luck.proposed(view.count)
        if view.kind == "search" and not at.candidates:
            job.exhausted.add(view.id.task)
            return
        if view.kind == "measure":
            log = self.logs.setdefault(job.keys[view.id.task], [])
            log += [self.luck.time() for _ in range(at.candidates)]
            at.candidates = 0
        at.kind = NEXT[view.kind]
        at.number += view.kind == "train"


KEYS = ["a", "b", "c", "d", "e", "f"]


@st.composite
def jobs(draw: Any) -> list[Model]:
    """Up to four jobs of up to six tasks, which they may share."""
    found = []
    for id in range(1, draw(st.integers(1, 4)) + 1):
        device = draw(st.sampled_from(["cpu", "cpu", "cuda"]))
        own = draw(st.booleans())
        keys = draw(st.lists(st.sampled_from(KEYS), min_size=0, max_size=6, unique=True))
        keys = [f"{device}/{id if own else ''}{key}" for key in keys]
        trials, priority, patience = (draw(st.integers(low, high)) for low, high in ((1, 40), (0, 1), (0, 3)))
        found.append(Model(id, device, keys, trials, priority, patience, [Round() for _ in keys]))
    return found


class TestWholeQueues:
    """Random queues, driven to their end; `World.tick` checks every step."""

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    @pytest.mark.parametrize("policy", ["sequential", "interleave", "predictive"])
    def test_every_job_comes_to_its_end(self, policy: str, data: st.DataObject) -> None:
        cpus = tuple(range(data.draw(st.integers(1, 4))))
        devices = data.draw(st.sampled_from([("cpu",), ("cpu", "cuda:0")]))
        world = World(MachineResources(cpus, devices), data.draw(jobs()), Luck(data.draw), policy)
        for _ in range(2000):
            if not world.tick():
                break
        else:
            pytest.fail("it does not come to an end")
        open = [view for view in world.views() if ended(view, []) is None]
        assert not world.busy
        assert {view.device for view in open} <= {"cuda"} - set(world.machine.kinds)

    @settings(max_examples=30, deadline=None)
    @given(tasks=st.integers(1, 12), cpus=st.integers(1, 4), extra=st.integers(0, 30))
    def test_a_budget_of_one_trial_a_task_reaches_every_task(self, tasks: int, cpus: int, extra: int) -> None:
        model = Model(1, "cpu", [f"k{n}" for n in range(tasks)], tasks + extra, 0, 0, [Round() for _ in range(tasks)])
        world = World(MachineResources(tuple(range(cpus))), [model], EveryTrialFails())
        while world.tick():
            pass
        assert len(world.logs) == tasks
        assert sum(map(len, world.logs.values())) == tasks + extra


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
        found = plan([view], [busy], TWO)
        assert (found.starts, found.waits[1].kind) == ((), "device")
