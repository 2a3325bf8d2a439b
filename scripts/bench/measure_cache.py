#!/usr/bin/env python
"""Which state of the cache tells best what a kernel takes in the whole model, and whether it would choose others.

    python scripts/bench/measure_cache.py --workspace WORKSPACE JOB [--kernels 5]

The best kernels of each task are built again and timed in turns: *warm*, as `measure` times them, and with everything
but their input *flushed* from the caches before each run, since in the model the weights come from memory. The model is
then compiled with the winners of each, and timed beside ONNX Runtime. At last the warm times of the kernels that were
logged as the best are held against the logged ones. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autotune.commands.jobs import select_one
from autotune.storage.formats import JobSpec, TaskSpec, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace

TURNS, REPEATS, LONGEST_MS = 7, 8, 10
STATES = ("warm", "flushed")


@dataclass
class Kernel:
    """A candidate that was built again, and its microseconds in each turn."""

    task: TaskSpec
    trial: Trial
    library: Path
    times: dict[str, list[float]] = field(default_factory=lambda: {state: [] for state in STATES})

    def us(self, state: str) -> float:
        return statistics.median(self.times[state])


def main() -> None:
    options = parse()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    workspace = Workspace(options.workspace)
    paths = select_one(workspace, options.job)
    spec = read_spec(paths)
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning(spec.target_kind)
    with tempfile.TemporaryDirectory() as folder:
        kernels = build(workspace, paths, spec, options.kernels, Path(folder))
        time_in_turns(kernels)
    chosen = {state: best(kernels, state) for state in STATES}
    first_logged = {kernel.task.hash: kernel for kernel in reversed(kernels)}
    latency = compare(paths, spec, chosen, options.threads)
    changed = sum(chosen["warm"][hash] is not chosen["flushed"][hash] for hash in chosen["warm"])
    print(f"{len(kernels)} kernels of {len(chosen['warm'])} tasks; {changed} tasks have another winner when flushed\n")
    print(f"{'winners':<10}{'sum warm ms':>13}{'sum flushed ms':>16}{'model ms':>10}")
    for state, winners in chosen.items():
        sums = (sum(item.task.weight * item.us(each) for item in winners.values()) / 1e3 for each in STATES)
        print(f"{state:<10}" + "{:13.2f}{:16.2f}".format(*sums) + f"{latency[state]:10.2f}")
    print(f"ONNX Runtime {latency['onnxruntime']:.2f} ms")
    for count in sorted({1, *range(2, options.kernels, 3), options.kernels}):
        print(f"flushed, the winners of the best {count} logged: {flushed_ms(kernels, count):.2f} ms")
    print(drift(list(first_logged.values())))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="id or name of a job for a CPU target that has trials")
    parser.add_argument("--workspace", type=Path, default=Path())
    parser.add_argument("--kernels", type=int, default=5, help="of each task, at most")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def build(workspace: Workspace, paths: JobPaths, spec: JobSpec, most: int, folder: Path) -> list[Kernel]:
    import tvm

    from autotune.tvm_backend.export.timing import retiming
    from autotune.tvm_backend.search.tasks import read_program

    found, target = retiming.fastest_trials(workspace, spec, most), tvm.target.Target(spec.target)
    kernels = []
    for index, task in enumerate(spec.tasks):
        if trials := found.get(task.hash):
            program = read_program(paths.task(index), task.hash)
            built = retiming.build(trials, program, target, folder)
            kernels += [Kernel(task, item.trial, item.library) for item in built]
    return kernels


def time_in_turns(kernels: Sequence[Kernel]) -> None:
    """All kernels in both states, turn by turn."""
    from autotune.tvm_backend.kernels.run import Runner, Timing, open_device

    runner = Runner(open_device("llvm"), Timing(warmup=1, repeats=1, min_repeat_ms=LONGEST_MS))
    for _ in range(TURNS):
        for kernel in kernels:
            args = kernel.trial.args
            for state, times in (
                ("warm", runner.time(kernel.library, args, None)),
                ("flushed", runner.time_flushed(kernel.library, args, REPEATS)),
            ):
                kernel.times[state].append(statistics.median(times))


def best(kernels: Sequence[Kernel], state: str) -> dict[str, Kernel]:
    """The fastest kernel of each task, by its hash."""
    ranked = sorted(kernels, key=lambda item: item.us(state), reverse=True)
    return {item.task.hash: item for item in ranked}


def flushed_ms(kernels: Sequence[Kernel], count: int) -> float:
    """What the tasks take with flushed caches, if of each the `count` that were logged as the fastest compete."""
    tasks: dict[str, list[Kernel]] = {}
    for kernel in kernels:  # the fastest logged one first
        tasks.setdefault(kernel.task.hash, []).append(kernel)
    return sum(few[0].task.weight * min(item.us("flushed") for item in few[:count]) for few in tasks.values()) / 1e3


def drift(kernels: Sequence[Kernel]) -> str:
    """How the warm times of kernels differ from their logged ones."""
    weights = np.array([item.task.weight for item in kernels])
    warm, logged = np.array([(item.us("warm"), item.trial.median_us) for item in kernels]).T
    low, middle, high = np.percentile(warm / logged - 1, (25, 50, 75))
    return (f"the best logged of {len(kernels)} tasks take {middle:+.1%} of what was logged (half of them {low:+.1%} to"
            f" {high:+.1%}), their sum {weights @ warm / (weights @ logged) - 1:+.1%}")  # fmt: skip


def compare(
    paths: JobPaths, spec: JobSpec, chosen: Mapping[str, Mapping[str, Kernel]], threads: int
) -> dict[str, float]:
    """Milliseconds of the model with the winners of each state, and of ONNX Runtime, in turns."""
    import tvm
    from comparison.turns import alternate

    from autotune.tvm_backend.export import runners
    from autotune.tvm_backend.export.compilation import compile_tuned
    from autotune.tvm_backend.export.inputs import draw
    from autotune.tvm_backend.models.onnx.read import read_model
    from autotune.tvm_backend.passes.prepare import prepare
    from autotune.tvm_backend.search.tasks import extract_tasks

    target = tvm.target.Target(spec.target)
    prepared = prepare(
        read_model(paths.model, {item.name: item for item in spec.inputs}).module, target, winograd=spec.winograd
    )
    programs = [task.program for task in extract_tasks(prepared, target)]
    arrays = draw(spec.inputs, 1)
    runners = {"onnxruntime": runners.onnx_runner(runners.onnx_session(paths.model, threads), spec.inputs, arrays)}
    for state, winners in chosen.items():
        trials = {hash: kernel.trial for hash, kernel in winners.items()}
        runners[state] = runners.vm_runner(compile_tuned(prepared, programs, trials, target), tvm.cpu(0), arrays)
    return alternate(runners, 40)


if __name__ == "__main__":
    main()
