"""When jobs will end, by the work that is left, whose turn it is, and what runs."""

from __future__ import annotations

import pytest

from autotune.planning.estimates import Estimates
from autotune.planning.planner import CPU, TASK, TURN, Planner
from autotune.planning.policies import POLICIES, get
from autotune.planning.view import JobView, Kind, MachineResources, RunningView, StageId, StageView, TaskView
from autotune.reasons import Reason

SECONDS: dict[Kind, float] = {"search": 4.0, "build": 8.0, "measure": 3.0, "train": 1.0}
GPUS = MachineResources((0, 1), ("cpu", "cuda:0"))


def job(id: int, trials: int = 64, device: str = "cuda", submitted_at: float = 0.0) -> JobView:
    tasks = tuple(TaskView(f"{id}/{task}", 1) for task in range(4))
    stages = tuple(StageView(StageId(id, task, 0), "search") for task in range(4))
    return JobView(id, device, tasks, stages, trials, 16, 0, 0.0, submitted_at=submitted_at)


def estimates() -> Estimates:
    learnt = Estimates()
    for kind, seconds in SECONDS.items():
        for device in ("cpu", "cuda"):
            learnt.add(kind, device, (), 16, seconds)
    return learnt


def forecast(
    policy: str, *jobs: JobView, machine: MachineResources = GPUS, now: float = 0.0, running: tuple = ()
) -> dict:
    planner = Planner(machine, get(policy), estimates())
    planner.plan(jobs, running, now)
    return planner.forecast(now, running)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_ends_no_sooner_than_its_work_takes(policy: str) -> None:
    """Four rounds of 16 seconds on two CPUs, or stage after stage."""
    assert forecast(policy, job(1))[1] == (64.0 if policy in ("sequential", "uncoordinated") else 32.0)


def test_a_measurement_on_the_cpu_takes_all_cpus() -> None:
    assert forecast("interleave", job(1, device="cpu"))[1] == (4 * 13 + 4 * 3 * 2) / 2


def test_a_job_ends_no_sooner_than_its_longest_chain() -> None:
    assert forecast("interleave", job(1), machine=MachineResources(tuple(range(64)), ("cpu", "cuda:0")))[1] == 16.0


def test_a_job_ends_no_sooner_than_its_device_is_done() -> None:
    many = MachineResources(tuple(range(64)), ("cpu", "cuda:0"))
    assert forecast("interleave", job(1, 640), job(2, 640), machine=many)[2] == pytest.approx(2 * 40 * 3.0, abs=40)


def test_in_order_a_job_waits_for_those_before_it() -> None:
    assert forecast("interleave", job(1), job(2, 16)) == {1: 32.0, 2: 40.0}


def test_jobs_of_which_each_runs_its_own_loop_share_the_cpus() -> None:
    assert forecast("uncoordinated", job(1), job(2)) == {1: 64.0, 2: 64.0}
    assert forecast("uncoordinated", *(job(id) for id in range(1, 5)))[1] == 128.0
    assert forecast("sequential", job(1), job(2)) == {1: 64.0, 2: 128.0}


def test_equals_share_so_that_the_short_one_ends_first() -> None:
    assert forecast("predictive", job(1), job(2, 16)) == {1: 40.0, 2: 16.0}


def test_a_job_submitted_hours_later_comes_after() -> None:
    assert forecast("predictive", job(1), job(2, 16, submitted_at=9e4)) == {1: 32.0, 2: 40.0}


@pytest.mark.parametrize(("kind", "count"), [("search", 16), ("build", 0)])
def test_what_has_run_for_a_while_is_done_by_as_much(kind: Kind, count: int) -> None:
    stage = RunningView(StageId(1, 0, 0), kind, (0,), count, "", 10.0)
    before, after = (forecast("interleave", job(1), now=now, running=(stage,))[1] for now in (10.0, 13.0))
    assert before - after == 1.5


def test_a_planner_forecasts_for_a_later_time_and_with_what_it_has_started() -> None:
    planner = Planner(GPUS, get("interleave"), estimates())
    view = job(1)
    (first, _) = planner.plan([view], [], now=10.0).starts
    started = RunningView(first.stage.id, first.stage.kind, first.cpus, first.count, first.device, 10.0)
    later = planner.forecast(13.0, [started])
    assert later == forecast("interleave", view, now=13.0, running=(started,))
    assert later != planner.forecast(10.0, [started])
    assert planner.jobs == {1}
    (second,) = planner.plan([view], [started], now=13.0).starts
    assert second.cpus != first.cpus, "a forecast takes no resources"


def test_a_job_without_its_device_has_no_end() -> None:
    assert forecast("predictive", job(1), job(2, device="rocm")).keys() == {1}


@pytest.mark.parametrize(
    ("reason", "about"),
    [
        (TURN, "turn"),
        (CPU, "cpu"),
        (TASK, "task"),
        (Reason("device", device="cpu"), "device"),
        (Reason("no-device", device="cuda"), "device"),
        (Reason("window", opens_at=5.0), "window"),
        (Reason("lease", resources=("cpu-0",)), "lease"),
    ],
)
def test_every_reason_is_about_something(reason: Reason, about: str) -> None:
    assert reason.topic == about
