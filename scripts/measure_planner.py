"""How fast the planner is: a tick of the daemon with 1,000 jobs of 20 tasks, and a simulation at scale.

python scripts/measure_planner.py [--gpus 1000] [--jobs 10000]
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from dataclasses import replace

from autotune.planning.planner import Planner
from autotune.planning.policies import POLICIES, get
from autotune.planning.scenario import Duration, Scenario, SimulatedJob
from autotune.planning.simulator import simulate
from autotune.planning.view import JobView, Kind, MachineResources, RunningView, StageId, StageView, TaskView

_MEANS: dict[Kind, float] = {"search": 10.0, "build": 15.0, "measure": 3.0, "train": 1.0}


def machine(gpus: int, cpus: int) -> MachineResources:
    return MachineResources(tuple(range(cpus)), ("cpu", *(f"cuda:{index}" for index in range(gpus))))


def waiting_job(id: int, tasks: int = 20) -> JobView:
    views = tuple(TaskView(f"{id}/{n}", 1 + n % 4, 32, tuple(900.0 - n - t for t in range(32))) for n in range(tasks))
    stages = tuple(StageView(StageId(id, n, 2), "search") for n in range(tasks))
    return JobView(id, "cuda", views, stages, 64 * tasks, 16, 5, 0.01, submitted_at=float(id))


def tick_ms(name: str, jobs: int, ticks: int = 200) -> tuple[float, float, float]:
    """Milliseconds of the first tick, and the median and the worst of those in which one stage has ended."""
    planner = Planner(machine(4, 32), get(name))
    views = {id: waiting_job(id) for id in range(1, jobs + 1)}
    running: dict[StageId, RunningView] = {}
    times = []
    for tick in range(ticks):
        begun = time.perf_counter()
        plan = planner.plan(list(views.values()), list(running.values()), float(tick))
        times.append(1000 * (time.perf_counter() - begun))
        for start in plan.starts:
            id = start.stage.id
            running[id] = RunningView(id, start.stage.kind, start.cpus, start.count, start.device, float(tick))
        ended = running.pop(next(iter(running)))
        views[ended.id.job] = _after(views[ended.id.job], ended)
    return times[0], statistics.median(times[1:]), max(times[1:])


def _after(job: JobView, ended: RunningView) -> JobView:
    """The job once a stage of it has ended."""
    following: dict[Kind, Kind] = {"search": "build", "build": "measure", "measure": "train", "train": "search"}
    kind = following[ended.kind]
    id = ended.id._replace(round=ended.id.round + (kind == "search"))
    stage = StageView(id, kind, 16 if kind in ("build", "measure") else 0)
    return replace(job, stages=tuple(stage if other.id == ended.id else other for other in job.stages))


def scenario(gpus: int, jobs: int) -> Scenario:
    """Jobs of 2 to 4 tasks and 3 to 5 rounds each, of stage times that differ by a factor of eight."""
    chance = random.Random(1)
    found = []
    for id in range(1, jobs + 1):
        seconds = {kind: Duration(mean * chance.uniform(0.3, 2.5), 0.3) for kind, mean in _MEANS.items()}
        tasks, trials = chance.randint(2, 4), 16 * chance.randint(3, 5)
        found.append(SimulatedJob(id, f"job{id}", "cuda", tasks, trials, seconds))
    return Scenario(machine(gpus, 8 * gpus), tuple(found), 1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gpus", type=int, default=1000)
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--policy", action="append", choices=list(POLICIES))
    chosen = options.parse_args()
    for name in chosen.policy or ("interleave", "predictive"):
        first, median, worst = tick_ms(name, 1000)
        print(f"{name}: tick with 1000 jobs of 20 tasks: median {median:.2f} ms, worst {worst:.2f}, first {first:.0f}")
        gc.disable()
        begun = time.perf_counter()
        outcome = simulate(scenario(chosen.gpus, chosen.jobs), get(name))
        wall = time.perf_counter() - begun
        gc.enable()
        print(
            f"{name}: {chosen.jobs} jobs, {chosen.gpus} GPUs, {8 * chosen.gpus} CPUs: {outcome.stages} stages in "
            f"{wall:.1f} s; makespan {outcome.makespan:.0f} s, {outcome.makespan / outcome.bound:.3f} of the bound"
        )


if __name__ == "__main__":
    main()
