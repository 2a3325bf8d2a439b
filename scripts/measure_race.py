#!/usr/bin/env python
"""Measure what a model gains if its kernels are chosen by their times inside the whole model.

    python scripts/measure_race.py --workspace WORKSPACE JOB [--kernels 3] [--seconds 30]

Three ways to choose among the fastest trials of each task are compared: the best *logged*; the fastest when built again
and timed with *flushed* caches, as `export` does it; and the fastest *inside* the model, which is compiled once with
the best trials, once with the second best and so on. Then the models that each way makes are timed. All that is
compared takes turns in one process, a few runs at a time, so what slows the machine down slows all. Of the kernels the
fifth percentile counts; of the models the median of the ratios to *logged* within a turn, with its quartiles. Takes two
to three minutes; nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.commands.jobs import select_one
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace

SEED, PROCESSES, TIMED = 2026, 2, 3
PERCENTILE = 5
LEAST_GAIN = 0.01  # by which another trial has to be faster than the best logged to be chosen

Best = Mapping[str, Trial]
Found = Mapping[str, Sequence[Trial]]


@dataclass(frozen=True)
class Job:
    """A job and the fastest trials of its tasks."""

    paths: JobPaths
    spec: JobSpec
    found: Found
    threads: int

    def ranked(self, rank: int) -> dict[str, Trial]:
        """The trials of one rank; of a task with fewer, the best."""
        return {hash: trials[rank if rank < len(trials) else 0] for hash, trials in self.found.items()}


def main() -> None:
    options = parse()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    workspace = Workspace(options.workspace)
    paths = select_one(workspace, options.job)
    from autotune.tvm_backend.export.timing.retiming import fastest_trials
    from autotune.tvm_backend.load import load_for_tuning

    spec = read_spec(paths)
    load_for_tuning(spec.target_kind)
    job = Job(paths, spec, fastest_trials(workspace, spec, options.kernels), options.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        libraries, tasks = compile_all(job, [job.ranked(rank) for rank in range(options.kernels)], folder, "rank")
        times = in_process(inside, job, libraries, options.seconds)
        ways = {"logged": job.ranked(0), "flushed": flushed(job, folder), "inside": by_rank(job, tasks, times)}
        show_choices(job, ways)
        libraries, _ = compile_all(job, list(ways.values()), folder, "way")
        for _ in range(PROCESSES):
            show(dict(zip(ways, in_process(whole, job, libraries, options.seconds / PROCESSES), strict=True)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="id or name of a job for a CPU target that has trials")
    parser.add_argument("--workspace", type=Path, default=Path())
    parser.add_argument("--kernels", type=int, default=3, help="of each task, at most")
    parser.add_argument("--seconds", type=float, default=30, help="to time kernels, and again to time models")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def compile_all(job: Job, chosen: Sequence[Best], folder: Path, name: str) -> tuple[list[Path], dict[str, str]]:
    """Compile the model with each choice; return the libraries, and the task's hash of each kernel that is in one."""
    from autotune.tvm_backend.export.compilation import JobModel
    from autotune.tvm_backend.export.writing.report import kernel_work

    model, libraries = JobModel.read(job.paths, job.spec), list[Path]()
    for number, best in enumerate(chosen):
        libraries.append(folder / f"{name}{number}.so")
        model.compile_tuned(best, libraries[-1])
    work = kernel_work(model.prepared, {task.hash: task.hash for task in job.spec.tasks})
    return libraries, {kernel: found.task for kernel, found in work.items() if found.task is not None}


def flushed(job: Job, folder: Path) -> dict[str, Trial]:
    """The trials that `export` would choose."""
    import tvm

    from autotune.tvm_backend.export.timing import retiming
    from autotune.tvm_backend.kernels.run import Runner, Timing, open_device
    from autotune.tvm_backend.search.tasks import read_program

    built, target = {}, tvm.target.Target(job.spec.target)
    indices = {task.hash: index for index, task in enumerate(job.spec.tasks)}
    for hash in retiming.tasks_to_retime(job.spec, job.found):
        program = read_program(job.paths.task(indices[hash]), hash)
        built[hash] = retiming.build(job.found[hash], program, target, folder)
    retiming.time_in_turns(built, Runner(open_device("llvm"), Timing(warmup=1, repeats=1, min_repeat_ms=20)))
    fastest = {hash: min(items, key=lambda item: item.median_us).trial for hash, items in built.items()}
    return job.ranked(0) | fastest


def by_rank(job: Job, tasks: Mapping[str, str], times: Sequence[Mapping[str, float]]) -> dict[str, Trial]:
    """The fastest trial of each task, from the time of each kernel in the library of each rank."""
    chosen = job.ranked(0)
    for hash, trials in job.found.items():
        kernels = [kernel for kernel, task in tasks.items() if task == hash]
        sums = [sum(times[rank].get(kernel, 0.0) for kernel in kernels) for rank in range(len(trials))]
        fastest = sums.index(min(sums))
        if sums[fastest] < sums[0] * (1 - LEAST_GAIN):
            chosen[hash] = trials[fastest]
    return chosen


def in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, as a library that is written after a run prints lines when it is loaded."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def load(job: Job, libraries: Sequence[Path]) -> list[tuple[Any, Callable[[], Any]]]:
    """TVM's virtual machine of each library, and what runs it once."""
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export import inputs, runners
    from autotune.tvm_backend.export.submitted import submitted

    arrays = inputs.verification_inputs(submitted(job.paths, job.spec)[0], job.spec.inputs, None, SEED).arrays
    machines = [relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu()) for library in libraries]
    function = job.spec.all_entries[0].name
    return [(item, runners.machine_runner(item, tvm.cpu(), list(arrays), function)) for item in machines]


def turns(count: int, seconds: float) -> Any:
    """Yield the places from 0 to `count` again and again for so long, each turn beginning with another one."""
    started, turn = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        yield from ((turn + place) % count for place in range(count))
        turn += 1


def inside(job: Job, libraries: Sequence[Path], seconds: float) -> list[dict[str, float]]:
    """Microseconds of each kernel of each library in a run of the model, all calls together."""
    found: list[dict[str, list[float]]] = [{} for _ in libraries]
    loaded, current, began = load(job, libraries), dict[str, float](), 0.0

    def stopwatch(_function: Any, name: str, before: bool, *_: Any) -> int:
        nonlocal began
        if before:
            began = time.perf_counter()
        else:
            current[name] = current.get(name, 0.0) + time.perf_counter() - began
        return 0

    for machine, run in loaded:
        run()
        machine.set_instrument(stopwatch)
    for place in turns(len(loaded), seconds):
        for number in range(1 + TIMED):
            current.clear()
            loaded[place][1]()
            for name, took in current.items() if number else ():
                found[place].setdefault(name, []).append(took * 1e6)
    return [{name: float(np.percentile(all, PERCENTILE)) for name, all in each.items()} for each in found]


def whole(job: Job, libraries: Sequence[Path], seconds: float) -> list[list[float]]:
    """Milliseconds of a run of each library, one value for each turn."""
    found: list[list[float]] = [[] for _ in libraries]
    runs = [run for _, run in load(job, libraries)]
    for place in turns(len(runs), seconds):
        runs[place]()
        began = time.perf_counter()
        for _ in range(TIMED):
            runs[place]()
        found[place].append((time.perf_counter() - began) / TIMED * 1e3)
    return found


def show_choices(job: Job, ways: Mapping[str, Best]) -> None:
    several = [hash for hash, trials in job.found.items() if len(trials) > 1]
    print(f"{job.spec.name}: {len(several)} of {len(job.found)} tasks have several trials within 15% of the best")
    for way, best in ways.items():
        print(f"  {way}: {sum(best[hash] is not job.found[hash][0] for hash in several)} tasks with another one")


def show(times: Mapping[str, Sequence[float]]) -> None:
    base, cells = times["logged"], list[str]()
    for way, found in times.items():
        ratios = [ours / theirs for ours, theirs in zip(found, base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        fast = np.percentile(found, PERCENTILE)
        cells.append(
            f"{way} {statistics.median(found):.2f} ms, fastest {fast:.2f}, {middle:.3f} ({low:.3f} to {high:.3f})"
        )
    print("  " + "; ".join(cells), flush=True)


if __name__ == "__main__":
    main()
