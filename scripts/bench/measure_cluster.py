"""What a Ray cluster costs: each stage's overhead and bytes, makespan against forecast.

python scripts/bench/measure_cluster.py overhead|bytes|makespan [--nodes 1 2 4]

Nodes are Ray's own, all on this machine. Their CPUs and devices are simulated, so that stages take time and no CPU;
`bytes` tunes real networks. Needs `pip install 'autotune[ray]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))
from rig import PER_ROUND, events, make_job, make_models

from autotune.config import load_config
from autotune.daemon.loop import Daemon
from autotune.planning.policies import get
from autotune.planning.scenario import Duration, Scenario, SimulatedJob
from autotune.planning.simulator import simulate
from autotune.planning.view import MachineResources
from autotune.processes.messages import RunStage
from autotune.storage.formats import SIMULATED
from autotune.storage.journal import StageDone
from autotune.storage.paths import Workspace
from autotune.workers.cluster.runner import ClusterRunner
from autotune.workers.stage_runner import StageRunner
from autotune.workers.worker_pool import WorkerPool

_CPUS = 2  # of each node
_STAGE_S = 5.0
_ROUNDS = 4
_MODELS = ("tiny_cnn", "squeezenet")
_KINDS = ("search", "build", "measure", "train")


@contextmanager
def cluster(nodes: int, **more: Any) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    options = {"num_cpus": _CPUS, "resources": {"gpu0": 1}, "object_store_memory": 80 << 20, **more}
    found.handles = [found.add_node(node_name=f"n{number}", wait=False, **options) for number in range(1, nodes + 1)]
    try:
        yield found
    finally:
        found.shutdown()


def make_workspace(root: Path, address: str, seconds: float, simulated: bool = True) -> Workspace:
    workspace = Workspace(root / "workspace")
    for folder in (workspace.jobs, workspace.logs):
        folder.mkdir(parents=True)
    lines = ["[machine]", f'lock_dir = "{root / "locks"}"']
    if simulated:
        lines += [f"simulated_cpus = {_CPUS}", "[devices.gpu0]", 'kind = "simulated"']
        lines += [f"{kind}_s = {seconds}" for kind in _KINDS]
    lines += ["[cluster]", 'engine = "ray"', f'address = "{address}"'] if address else []
    workspace.config.write_text("\n".join(lines) + "\n")
    return workspace


def joined(runner: StageRunner, nodes: int) -> None:
    while sum(node.state == "serving" for node in runner.nodes()) < nodes:
        list(runner.reports(select.select(runner.descriptors(), [], [], 0.1)[0]))


def stage_ms(runner: StageRunner, workspace: Workspace, rounds: int) -> dict[str, list[float]]:
    """Milliseconds from handing a stage over to its report, by kind of stage, one stage at a time."""
    job = make_job(workspace, 1, 1, 10_000)
    found = defaultdict(list)
    id = 0
    machine = runner.machine()
    cpus, device = (machine.cpus, machine.devices[0]) if machine else ((0,), f"{SIMULATED}:gpu0")
    for round in range(rounds):
        for kind in _KINDS:
            id += 1
            on = device if kind == "measure" else ""
            request = RunStage(id, job.folder.name, 0, round, kind, cpus[:1], 60.0, ("simcpu-0",), PER_ROUND, on)  # type: ignore[arg-type]
            started = time.perf_counter()
            runner.run(SIMULATED, request)
            while not (reports := list(runner.reports(select.select(runner.descriptors(), [], [], 0.1)[0]))):
                pass
            assert reports[0].outcome == "done", reports
            if round:  # the first one starts the worker
                found[kind].append(1000 * (time.perf_counter() - started))
    return found


def overhead(rounds: int = 25) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, cluster(1) as here:
        local = make_workspace(Path(folder, "local"), "", 0.0)
        pool = WorkerPool(local, 5.0)
        there = make_workspace(Path(folder, "ray"), here.address, 0.0)
        ray = ClusterRunner(there, load_config(there.config))
        joined(ray, 1)
        times = {"local": stage_ms(pool, local, rounds), "ray": stage_ms(ray, there, rounds)}
        pool.stop()
        ray.stop()
    medians = {
        name: {kind: round(statistics.median(values), 1) for kind, values in found.items()}
        for name, found in times.items()
    }
    every = {name: [value for values in found.values() for value in values] for name, found in times.items()}
    added = statistics.median(every["ray"]) - statistics.median(every["local"])
    return {"median_ms": medians, "overhead_ms": round(added, 1), "stages": 4 * (rounds - 1)}


def traffic(trials: int = 160) -> dict[str, Any]:
    """Bytes sent and received by each stage of real networks on one node."""
    from autotune.api.queue import submit

    cpus = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, cluster(1, num_cpus=cpus, resources={}) as here:
        workspace = make_workspace(Path(folder), here.address, 0.0, simulated=False)
        make_models(Path(folder), *_MODELS)
        for model in _MODELS:
            submit(Path(folder, f"{model}.onnx"), workspace=workspace.root, trials=trials)
        Daemon(workspace, load_config(workspace.config), drain=True).run()
        done = events(workspace, StageDone)
    return {kind: _bytes([event.summary for event in done if event.kind == kind]) for kind in _KINDS}


def _bytes(summaries: list[dict[str, Any]]) -> dict[str, list[int]]:
    """The median and the largest, of how many stages."""
    found = {name: [summary[name] for summary in summaries] for name in ("sent", "received")}
    return {name: [round(statistics.median(all)), max(all), len(all)] for name, all in found.items()}


def makespan(nodes: int) -> dict[str, Any]:
    """Real daemon and Ray, `nodes` jobs of stages of 5 s, against the simulator's makespan.

    `first_stages_s` is when the first stage of each node had ended: it includes the start of the node's worker.
    """
    with tempfile.TemporaryDirectory() as folder, cluster(nodes) as here:
        workspace = make_workspace(Path(folder), here.address, _STAGE_S)
        config = load_config(workspace.config)
        for id in range(1, nodes + 1):
            make_job(workspace, id, 2, _ROUNDS * PER_ROUND)
        runner = ClusterRunner(workspace, config)
        joined(runner, nodes)
        machine = runner.machine()
        started = time.time()
        Daemon(workspace, config, drain=True, runner=runner).run()
        done = sorted(events(workspace, StageDone), key=lambda event: event.at)
        took = done[-1].at - started
        first = {event.summary["node"]: event.at - started for event in reversed(done)}
    expected = forecast(machine, nodes)
    return {
        "nodes": nodes,
        "makespan_s": round(took, 1),
        "forecast_s": round(expected, 1),
        "ratio": round(took / expected, 3),
        "first_stages_s": sorted(round(seconds, 1) for seconds in first.values()),
    }


def forecast(machine: MachineResources, jobs: int) -> float:
    seconds = {kind: Duration(_STAGE_S) for kind in _KINDS}
    played = tuple(
        SimulatedJob(id, "net", SIMULATED, 2, _ROUNDS * PER_ROUND, seconds, PER_ROUND)  # type: ignore[arg-type]
        for id in range(1, jobs + 1)
    )
    return simulate(Scenario(machine, played), get("predictive")).makespan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "bytes", "makespan"))
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    if options.what == "makespan":
        for nodes in options.nodes:
            print(json.dumps(makespan(nodes)), flush=True)
    else:
        work = {"overhead": overhead, "bytes": traffic}[options.what]
        print(json.dumps(work()), flush=True)


if __name__ == "__main__":
    main()
