"""Whole queues are planned to their end, whatever jobs come: each step keeps within the machine and the budgets."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.planning import planner
from autotune.planning.budget import ended
from autotune.planning.policies import get
from autotune.planning.view import (
    JobView,
    Kind,
    MachineResources,
    RunningView,
    StageId,
    StagePlan,
    StageView,
    TaskView,
)

NEXT: dict[Kind, Kind] = {"search": "build", "build": "measure", "measure": "train", "train": "search"}


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
        planned = self._planned(views, held)
        for start in planned.starts:
            view = RunningView(start.stage.id, start.stage.kind, start.cpus, start.count, start.device)
            self.busy.append(Busy(view, self.now + self.luck.duration()))
        self._check(views, planned)
        if not self.busy:
            return False
        self.now = min(busy.until for busy in self.busy)
        for busy in [busy for busy in self.busy if busy.until == self.now]:
            self.busy.remove(busy)
            self._end(busy.view)
        return True

    def _planned(self, views: list[JobView], held: list[RunningView]) -> StagePlan:
        before = copy.deepcopy((views, held, self.machine))
        planned = planner.plan(views, held, self.machine, policy=get(self.policy))
        assert (views, held, self.machine) == before
        assert planner.plan(list(reversed(views)), held, self.machine, policy=get(self.policy)) == planned
        assert self.kept.plan(views, held) == planned, "what is kept between two plans must not change them"
        assert self.asked_later.choose(views, held) == replace(planned, waits={})
        started = [RunningView(start.stage.id, start.stage.kind, start.cpus, start.count) for start in planned.starts]
        assert self.asked_later.waits(0.0, [*held, *started]) == planned.waits
        return planned

    @staticmethod
    def _in_flight(job: JobView, running: list[RunningView]) -> int:
        """How many trials the rounds in flight will add: searches that run, and batches not yet measured."""
        searching = sum(stage.count for stage in running if stage.id.job == job.id and stage.kind == "search")
        return searching + sum(stage.candidates for stage in job.live_stages if stage.kind in ("build", "measure"))

    def _check(self, views: list[JobView], planned: StagePlan) -> None:
        held = [busy.view for busy in self.busy]
        self._check_cpus(held)
        self._check_keys(held)
        begins = {start.stage.id.job for start in planned.starts if start.stage.kind == "search"}
        for view in views:
            # Trials of another job count too, and may carry it past its budget; but then it begins nothing more.
            assert view.id not in begins or view.trials_done + self._in_flight(view, held) <= view.trials
            busy = any(item.id.job == view.id for item in held)
            assert busy == (view.id not in planned.waits)
        assert planned.starts or self.busy or all(reason.kind == "no-device" for reason in planned.waits.values())
        assert all(start.count > 0 for start in planned.starts if start.stage.kind == "search")

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
    models = []
    for id in range(1, draw(st.integers(1, 4)) + 1):
        device = draw(st.sampled_from(["cpu", "cpu", "cuda"]))
        own = draw(st.booleans())
        keys = draw(st.lists(st.sampled_from(KEYS), min_size=0, max_size=6, unique=True))
        keys = [f"{device}/{id if own else ''}{key}" for key in keys]
        trials, priority, patience = (draw(st.integers(low, high)) for low, high in ((1, 40), (0, 1), (0, 3)))
        models.append(Model(id, device, keys, trials, priority, patience, [Round() for _ in keys]))
    return models


class TestWholeQueues:
    """Random queues, driven to their end; `World.tick` checks every step."""

    @settings(max_examples=10, deadline=None)
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

    @settings(max_examples=10, deadline=None)
    @given(tasks=st.integers(1, 12), cpus=st.integers(1, 4), extra=st.integers(0, 30))
    def test_a_budget_of_one_trial_a_task_reaches_every_task(self, tasks: int, cpus: int, extra: int) -> None:
        model = Model(1, "cpu", [f"k{n}" for n in range(tasks)], tasks + extra, 0, 0, [Round() for _ in range(tasks)])
        world = World(MachineResources(tuple(range(cpus))), [model], EveryTrialFails())
        while world.tick():
            pass
        assert len(world.logs) == tasks
        assert sum(map(len, world.logs.values())) == tasks + extra
