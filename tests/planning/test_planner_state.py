"""Of jobs that are gone the planner's state keeps nothing, however many there were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.planning.planner import Planner
from autotune.planning.planner_state import TaskClaims
from autotune.planning.policies import get
from autotune.planning.policies.predictive import Predictive
from autotune.planning.queues import Rank
from autotune.planning.view import JobView, Kind, MachineResources, RunningView, StageId, StageView, TaskView

MACHINE = MachineResources((0, 1), ("cpu", "cuda:0"))


def job(id: int) -> JobView:
    """Three tasks: one that all jobs share, and two of its own, of which one is to be measured."""
    tasks = tuple(TaskView(key, 1, 4, (9.0,) * 4) for key in ("shared", f"{id}/1", f"{id}/2"))
    stages = (
        StageView(StageId(id, 0, 0), "search", 0),
        StageView(StageId(id, 1, 0), "search", 0),
        StageView(StageId(id, 2, 0), "measure", 4),
    )
    return JobView(id, "cuda", tasks, stages, trials=64, trials_per_round=4, patience=0, min_gain=0.01)


@pytest.mark.parametrize("policy", ["predictive", "interleave", "sequential", "uncoordinated"])
def test_of_jobs_that_are_gone_nothing_is_kept(policy: str) -> None:
    planner = Planner(MACHINE, get(policy))
    always = job(0)
    for id in range(1, 400):
        starts = planner.plan([always, job(id)], [], now=float(id)).starts
        running = [RunningView(item.stage.id, item.stage.kind, item.cpus, item.count, item.device) for item in starts]
        planner.plan([always], running, now=float(id))  # the job is gone before its stages have ended
    planner.plan([always], [], now=400.0)
    state = planner._state
    assert set(state.jobs) == {0}
    assert (state.running, state._orphans) == ({}, 0)
    keys = {task.key for task in always.tasks}
    assert set(state._claims._watchers) <= keys
    assert set(state._claims._holders) <= keys
    heaps = [heap for device in state.queues.values() for queue in device.queues.values() for heap in queue._heaps]
    assert max(map(len, heaps)) < 100
    assert set(state._jobs_with) == keys
    assert state.queues and all(len(device.shared) <= 1 for device in state.queues.values())


class Counting(Predictive):
    """Counts how often it is asked for ranks."""

    asked = 0

    def ranks(self, *args: Any) -> tuple[Rank, ...]:
        self.asked += 1
        return super().ranks(*args)


def asked_while_it_goes_on(jobs: int) -> list[int]:
    """Return how many ranks each plan asks for while stages end one after the other."""
    policy = Counting()
    planner = Planner(MACHINE, policy)
    views = {id: sharing(id) for id in range(jobs)}
    running: dict[StageId, RunningView] = {}
    counts = []
    for now in range(12):
        before = policy.asked
        for start in planner.plan(list(views.values()), list(running.values()), float(now)).starts:
            running[start.stage.id] = RunningView(
                start.stage.id, start.stage.kind, start.cpus, start.count, start.device
            )
        counts.append(policy.asked - before)
        ended = running.pop(next(iter(running)))
        views[ended.id.job] = after(views[ended.id.job], ended)
    return counts[1:]


def sharing(id: int) -> JobView:
    """A job whose tasks all jobs have."""
    tasks = tuple(TaskView(f"shared/{index}", 1, 4, (9.0 - index,) * 4) for index in range(3))
    stages = tuple(StageView(StageId(id, index, 0), "search", 0) for index in range(3))
    return JobView(id, "cuda", tasks, stages, trials=64, trials_per_round=4, patience=0, min_gain=0.01)


def after(job: JobView, ended: RunningView) -> JobView:
    """The job once a stage of it has ended."""
    following: dict[Kind, Kind] = {"search": "build", "build": "measure", "measure": "train", "train": "search"}
    kind = following[ended.kind]
    stage = StageView(
        ended.id._replace(round=ended.id.round + (kind == "search")), kind, 4 if kind in ("build", "measure") else 0
    )
    return replace(job, stages=tuple(stage if other.id == ended.id else other for other in job.stages))


def test_a_claim_on_a_task_that_many_jobs_have_makes_nobody_look_at_all_of_them() -> None:
    few = asked_while_it_goes_on(20)
    many = asked_while_it_goes_on(400)
    assert few == many and max(many) < 40


class TestTaskClaims:
    def test_a_claimed_log_is_free_for_its_holder_alone(self) -> None:
        claims = TaskClaims()
        claims.change(1, {}, {"log": {0}})
        assert claims.is_free("log", 1, 0)
        assert not claims.is_free("log", 1, 1)
        assert not claims.is_free("log", 2, 0)
        claims.change(1, {"log": {0}}, {})
        assert claims.is_free("log", 2, 0)

    def test_other_jobs_that_watch_a_log_are_named_when_its_claims_change(self) -> None:
        claims = TaskClaims()
        for job in (3, 2, 1):
            claims.watch(job, set(), {"log"})
        claims.watch(4, set(), {"another"})
        assert claims.change(1, {}, {"log": {0}}) == [2, 3]
        claims.watch(2, {"log"}, set())
        assert claims.change(1, {"log": {0}}, {}) == [3]

    def test_nothing_is_kept_of_what_is_neither_claimed_nor_watched(self) -> None:
        claims = TaskClaims()
        claims.change(1, {}, {"log": {0}})
        claims.watch(2, set(), {"log"})
        claims.change(1, {"log": {0}}, {})
        claims.watch(2, {"log"}, set())
        assert (claims._holders, claims._watchers) == ({}, {})
