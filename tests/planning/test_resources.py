"""Several machines as one: each stage has its CPUs and its device on one of them."""

from __future__ import annotations

from functools import partial

import pytest

from autotune.planning import planner
from autotune.planning.policies import POLICIES, get
from autotune.planning.view import JobView, Kind, MachineResources, RunningView, StageId, StageView, Start, TaskView
from autotune.reasons import Reason

plan = partial(planner.plan, policy=get("interleave"))


def node(number: int, cpus: int = 2, *devices: str) -> MachineResources:
    return MachineResources(tuple(range(10 * number, 10 * number + cpus)), devices)


def job(id: int, device: str, *kinds: Kind) -> JobView:
    tasks = tuple(TaskView(f"{id}/{index}", 1) for index in range(len(kinds)))
    stages = tuple(
        StageView(StageId(id, index, 0), kind, 4 if kind in ("build", "measure") else 0)
        for index, kind in enumerate(kinds)
    )
    return JobView(id, device, tasks, stages, 64, trials_per_round=4, patience=0, min_gain=0.01)


def running(kind: Kind, *cpus: int, job: int = 9, task: int = 0, device: str = "") -> RunningView:
    return RunningView(StageId(job, task, 0), kind, cpus, 0, device)


def places(starts: tuple[Start, ...]) -> list[tuple[Kind, tuple[int, ...], str]]:
    return [(start.stage.kind, start.cpus, start.device) for start in starts]


def test_a_measurement_gets_a_cpu_beside_its_device() -> None:
    machine = MachineResources.of_nodes([node(1, 1, "cuda:a/0"), node(2, 1, "cuda:b/0")])
    planned = plan([job(1, "cuda", "measure", "measure")], [running("search", 10)], machine)
    assert places(planned.starts) == [("measure", (20,), "cuda:b/0")]


def test_stages_spread_over_the_nodes() -> None:
    machine = MachineResources.of_nodes([node(1), node(2), node(3)])
    planned = plan([job(1, "cuda", "build", "build", "build")], [], machine)
    assert sorted(start.cpus[0] // 10 for start in planned.starts) == [1, 2, 3]


def test_a_measurement_on_cpus_takes_those_of_one_node_and_the_others_go_on() -> None:
    machine = MachineResources.of_nodes([node(1, 2, "cpu-x:a"), node(2, 2, "cpu-x:b")])
    planned = plan([job(1, "cpu-x", "measure", "build", "build", "build")], [], machine)
    assert places(planned.starts)[0] == ("measure", (10, 11), "cpu-x:a")
    assert {start.cpus[0] for start in planned.starts[1:]} == {20, 21}


def test_only_the_node_that_is_nearest_to_idle_is_drained() -> None:
    machine = MachineResources.of_nodes([node(1, 2, "cpu-x:a"), node(2, 3, "cpu-x:b")])
    batches = job(1, "cpu-x", *["measure"] * 6, *["build"] * 4)
    busy = [running("build", 10, task=0), running("build", 20, task=1)]
    assert places(plan([batches], busy, machine).starts) == [("build", (11,), "")]


def test_a_job_for_the_cpus_of_some_nodes_is_built_on_all_and_measured_on_those() -> None:
    machine = MachineResources.of_nodes([node(1, 2, "cpu-x:a"), node(2, 2, "cpu-y:b")])
    busy = [running("build", 20), running("build", 21, task=1)]
    planned = plan([job(1, "cpu-y", "build")], busy, machine)
    assert [(start.stage.id.job, start.cpus) for start in planned.starts] == [(1, (10,))]
    waiting = plan([job(1, "cpu-y", "measure")], [running("build", 20, task=1)], machine)
    assert not waiting.starts and waiting.waits[1].topic in ("cpu", "device")


def test_a_job_for_cpus_that_no_node_has_says_so() -> None:
    machine = MachineResources.of_nodes([node(1, 2, "cpu-x:a"), node(2, 2, "cpu-y:b")])
    planned = plan([job(1, "cpu-z", "measure")], [], machine)
    assert not planned.starts and planned.waits[1] == Reason("no-device-on-nodes", device="cpu-z")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_plans_for_nodes(policy: str) -> None:
    nodes = [node(1, 2, "cpu-x:a", "cuda:a/0"), node(2, 2, "cpu-x:b"), node(3, 1, "cuda:c/0")]
    machine = MachineResources.of_nodes(nodes)
    jobs = [job(1, "cuda", "measure", "build", "search"), job(2, "cpu-x", "measure", "train", "search")]
    starts = planner.plan(jobs, [], machine, get(policy)).starts
    assert starts
    for start in starts:
        (home,) = [part for part in nodes if set(start.cpus) <= set(part.cpus)]
        assert start.device in ("", *home.devices)
