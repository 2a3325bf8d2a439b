"""How fast the planner is: a tick of the daemon with 1,000 jobs of 20 tasks, and a simulation at scale.

python scripts/bench/measure_planner.py [--gpus 1000] [--jobs 10000]
python scripts/bench/measure_planner.py --nodes 125 --latency 0.05 --bandwidth 1e8 --mean-time-to-failure 86400

With `--nodes`, the machine is a cluster. Then each stage also sends and receives what a stage of a real network
does at most (docs/explanation/cluster-measured.md), and nodes fail at random: a stage that runs there is lost, found to
be so when its node has not answered for 30 s, and runs again.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from dataclasses import dataclass, replace

from autotune.planning.planner import Planner
from autotune.planning.policies import POLICIES, get
from autotune.planning.scenario import Duration, Scenario, SimulatedJob, chance
from autotune.planning.simulator import simulate
from autotune.planning.view import JobView, Kind, MachineResources, RunningView, StageId, StageView, TaskView

_MEANS: dict[Kind, float] = {"search": 10.0, "build": 15.0, "measure": 3.0, "train": 1.0}


# The most that a stage of SqueezeNet sent and received; libraries travel again if another node measures them.
_BYTES: dict[Kind, float] = {"search": 1.3e6, "build": 3.4e6, "measure": 3.4e6, "train": 1.1e6}
_NOTICED_S = 30.0  # `node_timeout_s`


@dataclass(frozen=True)
class Network:
    """What lies between the daemon and its nodes.

    Attributes:
        latency_s: Of a message. A stage is one to the node and one back.
        bandwidth: Bytes a second that a node sends or receives.
        lives_s: The mean time after which a node fails.
    """

    latency_s: float
    bandwidth: float
    lives_s: float


@dataclass(frozen=True)
class ClusterScenario(Scenario):
    """A scenario whose stages run beyond a network, on nodes that fail."""

    network: Network = Network(0.0, 1e12, 1e12)

    def seconds(self, job: SimulatedJob, task: int, round: int, kind: Kind, count: int) -> float:
        """Return how many seconds a stage takes, with what is sent for it and the run that its node may have lost."""
        net = self.network
        runs = super().seconds(job, task, round, kind, count)
        whole = runs + 2 * net.latency_s + _BYTES[kind] * count / job.trials_per_round / net.bandwidth
        lost = chance(self.seed + 1, job.id, task, round, kind)
        share = whole / net.lives_s
        return whole if lost >= share else whole + whole * lost / share + _NOTICED_S


def machine(gpus: int, cpus: int, nodes: int = 0) -> MachineResources:
    if nodes:
        resources = [_node(number, gpus // nodes, cpus // nodes) for number in range(nodes)]
        return MachineResources.of_nodes(resources)
    return MachineResources(tuple(range(cpus)), ("cpu", *(f"cuda:{index}" for index in range(gpus))))


def _node(number: int, gpus: int, cpus: int) -> MachineResources:
    own = tuple(10_000 * number + cpu for cpu in range(cpus))
    return MachineResources(own, tuple(f"cuda:n{number}/{index}" for index in range(gpus)))


def waiting_job(id: int, tasks: int = 20) -> JobView:
    views = tuple(TaskView(f"{id}/{n}", 1 + n % 4, 32, tuple(900.0 - n - t for t in range(32))) for n in range(tasks))
    stages = tuple(StageView(StageId(id, n, 2), "search") for n in range(tasks))
    return JobView(id, "cuda", views, stages, 64 * tasks, 16, 5, 0.01, submitted_at=float(id))


def tick_ms(name: str, jobs: int, resources: MachineResources, ticks: int = 200) -> tuple[float, float, float]:
    """Milliseconds of the first tick, and the median and the worst of those in which one stage has ended."""
    planner = Planner(resources, get(name))
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


def scenario(gpus: int, jobs: int, nodes: int, network: Network) -> Scenario:
    """Jobs of 2 to 4 tasks and 3 to 5 rounds each, of stage times that differ by a factor of eight."""
    chance = random.Random(1)
    queued = []
    for id in range(1, jobs + 1):
        seconds = {kind: Duration(mean * chance.uniform(0.3, 2.5), 0.3) for kind, mean in _MEANS.items()}
        tasks = chance.randint(2, 4)
        trials = 16 * chance.randint(3, 5)
        queued.append(SimulatedJob(id, f"job{id}", "cuda", tasks, trials, seconds))
    if nodes:
        return ClusterScenario(machine(gpus, 8 * gpus, nodes), tuple(queued), 1, network)
    return Scenario(machine(gpus, 8 * gpus), tuple(queued), 1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gpus", type=int, default=1000)
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--nodes", type=int, default=0, help="0 for one machine")
    options.add_argument("--latency", type=float, default=0.05, help="seconds")
    options.add_argument("--bandwidth", type=float, default=1e8, help="bytes a second")
    options.add_argument("--mean-time-to-failure", type=float, default=86400.0, help="of a node, in seconds")
    options.add_argument("--policy", action="append", choices=list(POLICIES))
    chosen = options.parse_args()
    network = Network(chosen.latency, chosen.bandwidth, chosen.mean_time_to_failure)
    small = machine(4, 32) if not chosen.nodes else machine(chosen.gpus, 8 * chosen.gpus, chosen.nodes)
    for name in chosen.policy or ("interleave", "predictive"):
        first, median, worst = tick_ms(name, 1000, small)
        print(f"{name}: tick with 1000 jobs of 20 tasks: median {median:.2f} ms, worst {worst:.2f}, first {first:.0f}")
        gc.disable()
        begun = time.perf_counter()
        outcome = simulate(scenario(chosen.gpus, chosen.jobs, chosen.nodes, network), get(name))
        wall = time.perf_counter() - begun
        gc.enable()
        print(
            f"{name}: {chosen.jobs} jobs, {chosen.gpus} GPUs, {8 * chosen.gpus} CPUs: {outcome.stages} stages in "
            f"{wall:.1f} s; makespan {outcome.makespan:.0f} s, {outcome.makespan / outcome.bound:.3f} of the bound"
        )


if __name__ == "__main__":
    main()
