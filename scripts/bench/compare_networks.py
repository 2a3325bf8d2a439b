#!/usr/bin/env python
"""Tune whole networks with several strategies on equal budgets, as tables 2 and 3 of the Chameleon paper do.

    python scripts/bench/compare_networks.py           # AlexNet, VGG-16, ResNet-18; the paper's four ways and ours
    python scripts/bench/compare_networks.py --networks resnet18 --trials 320 --seeds 3
    python scripts/bench/compare_networks.py --report  # the tables again: compiles and times, but tunes nothing

Every run is a job as users have it: `submit` and a daemon, in a fresh workspace, from autotune's prior. A run that
ended is kept in the folder's runs.jsonl and not made again. At the end all models of a network and ONNX Runtime are
timed in turns, in one process. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comparison.tables import BASELINE, markdown, read
from evaluation import workspaces

from autotune.storage import formats
from autotune.storage.formats import JobSpec, from_json
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog

SELF = Path(__file__).resolve()
WAYS = ("beam/greedy", BASELINE, "chameleon/greedy", "annealing/adaptive", "chameleon/adaptive")
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Job:
    """What a run follows from."""

    network: str
    way: str
    seed: int
    trials: int
    threads: int

    def folder(self, root: Path) -> Path:
        return root / f"{self.network}-{self.way.replace('/', '-')}-{self.seed}-{self.trials}-{self.threads}"


def main() -> None:
    options = parse()
    if options.time:
        print(json.dumps(latencies(options.time, options.threads)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    kept, wanted = options.folder / "runs.jsonl", jobs(options)
    if not options.report:
        tune_missing(wanted, options.folder, kept)
    for network in options.networks:
        runs = [run for run in read(kept) if run["network"] == network and from_json(Job, run) in wanted]
        if runs:
            print(table(network, runs, timed(options, network, runs)) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/networks"), help="models, workspaces, runs")
    parser.add_argument("--networks", nargs="+", default=["alexnet", "vgg16", "resnet18"], metavar="NAME")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), metavar="STRATEGY/SAMPLER")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs of each")
    parser.add_argument("--trials", type=int, default=160, help="budget of a run")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--report", action="store_true", help="tune nothing")
    parser.add_argument("--time", nargs="+", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def jobs(options: argparse.Namespace) -> list[Job]:
    """All networks and ways have one seed before any has the next."""
    wanted = itertools.product(range(1, options.seeds + 1), options.networks, options.ways)
    return [Job(network, way, seed, options.trials, options.threads) for seed, network, way in wanted]


def tune_missing(wanted: Sequence[Job], root: Path, kept: Path) -> None:
    """Make the runs that are not there yet."""
    there = {from_json(Job, run) for run in read(kept)}
    missing = [job for job in wanted if job not in there]
    for number, job in enumerate(missing, 1):
        print(f"{number} of {len(missing)}: {job.network} {job.way} seed {job.seed}", file=sys.stderr, flush=True)
        found = tune(job, root)
        with kept.open("a") as file:
            file.write(json.dumps({**asdict(job), **found}) + "\n")


def tune(job: Job, root: Path) -> dict[str, Any]:
    folder = job.folder(root)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut off
    settings = f'[machine]\nlock_dir = "{folder.resolve()}/locks"\n[job]\npatience = 0\n'
    workspace = workspaces.make(folder, f"{settings}[measure]\nthreads = {job.threads}\n")
    strategy, _, sampler = job.way.partition("/")
    way = ("--strategy", strategy, "--sampler", sampler)
    budget = ("--trials", job.trials, "--seed", job.seed)
    workspaces.call(workspace, "submit", made(job.network, root), *way, *budget, "--quiet")
    drained = workspaces.drain(workspace, "predictive")
    ran = workspaces.stages(workspace)
    searches = [stage for stage in ran if stage.kind == "search"]
    return {
        "seconds": drained["wall_s"],
        "measured": workspaces.status(workspace)[-1]["trials_done"],
        "searching": sum(stage.seconds for stage in searches),
        "searches": len(searches),
        "steps": sum(stage.steps for stage in searches),
        "curve": curve(workspace, drained["begun"]),
    }


def made(network: str, root: Path) -> Path:
    """The network's file, written if it is not there."""
    path = root / f"{network}.onnx"
    if not path.exists():
        command = [sys.executable, str(SELF.parents[1] / "models" / "make_models.py"), network, "--output", str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def curve(workspace: Workspace, begun: float) -> list[tuple[float, float]]:
    """Seconds since the daemon began, and the sum of the tasks' best times in milliseconds, once all have one."""
    spec = formats.read(JobSpec, workspace.job_list()[-1].spec)
    weights = {spec.tasks[index].hash: spec.tasks[index].weight for index in spec.tunable}
    logs = {hash: TuningLog(workspace.tuning_log(spec.target_key, hash).records) for hash in weights}
    times = [
        (trial.at, hash, trial.median_us) for hash, log in logs.items() for trial in log.trials() if trial.median_us
    ]
    return list(sums(sorted(times), weights, begun))


def sums(
    times: Sequence[tuple[float, str, float]], weights: dict[str, int], begun: float
) -> Iterator[tuple[float, float]]:
    """Every moment at which the weighted sum of the best times fell, and the sum; `times` are in order of `at`."""
    best: dict[str, float] = {}
    for at, task, time_us in times:
        if time_us < best.get(task, float("inf")):
            best[task] = time_us
            if len(best) == len(weights):
                yield at - begun, sum(weights[name] * value for name, value in best.items()) / 1e3


def timed(options: argparse.Namespace, network: str, runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of each run's model, by its folder, and of ONNX Runtime, all timed in turns."""
    folders = [from_json(Job, run).folder(options.folder) for run in runs]
    command = [sys.executable, str(SELF), "--threads", str(options.threads)]
    command += ["--time", str(made(network, options.folder)), *map(str, folders)]
    environment = {**os.environ, "TVM_NUM_THREADS": str(options.threads)}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"{network} could not be timed: {answer.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def latencies(paths: Sequence[Path], threads: int) -> dict[str, float]:
    """`paths`: the model, and the workspaces that tuned it."""
    import tvm
    from comparison.turns import alternate

    from autotune.tvm_backend.export import runners
    from autotune.tvm_backend.export.inputs import draw
    from autotune.tvm_backend.export.timing import accuracy
    from autotune.tvm_backend.load import load_tvm
    from autotune.tvm_backend.models.onnx.read import read_model

    load_tvm("llvm")
    path, *folders = paths
    model = read_model(path, {})
    arrays = draw(model.inputs, seed=1)
    runners = {"onnxruntime": runners.onnx_runner(runners.onnx_session(path, threads), model.inputs, arrays)}
    for folder in folders:
        runners[folder.name] = runners.vm_runner(compiled(Workspace(folder), model.module), tvm.cpu(0), arrays)
        accuracy.check(runners[folder.name](), runners["onnxruntime"](), TOLERANCE)
    return alternate(runners, 30)


def compiled(workspace: Workspace, module: Any) -> Any:
    """The model with the best trial of each task, as `export` would have it but for the last comparison of the best."""
    import tvm

    from autotune.tvm_backend.export.compilation import compile_tuned
    from autotune.tvm_backend.export.timing import retiming
    from autotune.tvm_backend.passes.prepare import prepare
    from autotune.tvm_backend.search.tasks import extract_tasks

    spec = formats.read(JobSpec, workspace.job_list()[-1].spec)
    target = tvm.target.Target(spec.target)
    prepared = prepare(module, target, winograd=spec.winograd)
    programs = [task.program for task in extract_tasks(prepared, target)]
    best = {hash: trials[0] for hash, trials in retiming.fastest_trials(workspace, spec, most=1).items()}
    return compile_tuned(prepared, programs, best, target)


def table(network: str, runs: Sequence[dict[str, Any]], ms: dict[str, float]) -> str:
    """Means over seeds; the baseline's end is the sum of the tasks of its worst seed."""
    runs = [run for run in runs if run["curve"]]  # else a task has no time
    bases = [run["curve"][-1][1] for run in runs if run["way"] == BASELINE]
    rows = []
    for way in dict.fromkeys(run["way"] for run in runs):
        group = [run for run in runs if run["way"] == way]
        models = [ms[from_json(Job, run).folder(Path()).name] for run in group]
        rows.append(
            [
                way,
                f"{mean(group, 'seconds'):.0f}",
                f"{mean(group, 'measured'):.0f}",
                f"{mean(group, 'searching'):.0f}",
                f"{statistics.mean(run['steps'] / max(1, run['searches']) for run in group):.0f}",
                came(group, max(bases)) if bases else "",
                f"{statistics.mean(run['curve'][-1][1] for run in group):.2f}",
                f"{statistics.mean(models):.2f}",
            ]
        )
    heads = [
        "seconds",
        "trials",
        "searching, s",
        "steps a search",
        f"s to the end of {BASELINE}",
        "tasks, ms",
        "model, ms",
    ]
    return markdown([network, *heads], [*rows, ["ONNX Runtime", *[""] * 6, f"{ms['onnxruntime']:.2f}"]])


def mean(group: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.mean(run[name] for run in group)


def came(group: Sequence[dict[str, Any]], goal: float) -> str:
    """Seconds until the sum of the tasks was down to the goal; a run that never came there counts in full."""
    reached = [next((at for at, total in run["curve"] if total <= goal), None) for run in group]
    seconds = statistics.mean(run["seconds"] if at is None else at for at, run in zip(reached, group, strict=True))
    never = reached.count(None)
    return f"{seconds:.0f}" + (f" ({never} of {len(group)} never)" if never else "")


if __name__ == "__main__":
    main()
