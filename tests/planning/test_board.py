"""The board: of jobs that are gone it keeps nothing, however many there were."""

from __future__ import annotations

import pytest

from autotune.planning.planner import Planner
from autotune.planning.policies import get
from autotune.planning.view import JobView, MachineResources, RunningView, StageId, StageView, TaskView

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
    board = planner._board
    assert set(board.jobs) == {0}
    assert (board.running, board._orphans) == ({}, 0)
    keys = {task.key for task in always.tasks}
    assert set(board._claims._watchers) <= keys
    assert set(board._claims._holders) <= keys
    heaps = [heap for device in board.queues.values() for queue in device.queues.values() for heap in queue._heaps]
    assert max(map(len, heaps)) < 100
