#!/usr/bin/env python
"""Say how well the times of kernels foretell the time of their model: timed in a loop, and as the model calls them.

    python scripts/bench/measure_context.py --workspace DIR JOB --draws 30

The job is for the CPUs of this machine, and has trials. For each draw, each task gets one of its candidates that take
at most twice as long as its best. The candidates are built and timed in both ways; the library of each draw is
compiled, and timed in three processes of its own. Printed are Spearman's correlations of the sums with the times of the
libraries, and how many of the kernels that take 2% of the last library or more are timed within 15%. It takes some
minutes; nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import spearmanr

from autotune.commands.jobs import select_one
from autotune.devices.cpu import nearest_holding
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.kept_objects import KeptObjects
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.trial_index import by_time
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.export.compilation import JobModel
from autotune.tvm_backend.export.inputs import SEED, verification_inputs
from autotune.tvm_backend.export.submitted import submitted
from autotune.tvm_backend.export.timing import retiming
from autotune.tvm_backend.export.timing.comparison import TIMINGS, Runtime, RuntimeComparison
from autotune.tvm_backend.export.timing.kernel_times import KernelTime
from autotune.tvm_backend.expressions import constant_bytes
from autotune.tvm_backend.kernels.cache_state import Context
from autotune.tvm_backend.kernels.time_kernel import Runner, Timing, open_device
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.search.tasks import read_program

SLOWEST = 2.0  # times the best of its task that a candidate may take
CANDIDATES = 8  # of a task
TURNS = 5
RUNS = 8
PROCESSES = 3
CLOSE = 0.15
LARGE = 0.02  # of the time of the model
KEPT_BYTES = 2**30

Times = dict[str, float]  # microseconds of a candidate, by its hash


@dataclass(frozen=True)
class Draw:
    """A trial of each task, by the hash of the task, and the milliseconds that its library takes."""

    trials: Mapping[str, Trial]
    model_ms: float
    kernels: Sequence[KernelTime]

    def sum_us(self, spec: JobSpec, times: Times) -> float:
        """Return the sum of the times of its kernels, in microseconds."""
        tasks = (task for task in spec.tasks if task.hash in self.trials)
        return sum(task.weight * times[self.trials[task.hash].hash] for task in tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", metavar="JOB")
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=30)
    options = parser.parse_args()
    workspace = Workspace(options.workspace.absolute())
    paths = select_one(workspace, options.job)
    spec = read_spec(paths)
    os.environ["TVM_NUM_THREADS"] = str(spec.target["num-cores"])
    load_tvm("llvm")
    candidates = {task.hash: candidates_of(workspace, spec, task.hash) for task in spec.tasks if task.tunable}
    model = JobModel.read(paths, spec)
    with tempfile.TemporaryDirectory() as folder:
        in_loop, in_context = time_candidates(paths, spec, model, candidates, Path(folder))
        drawn = list(draws(paths, spec, model, candidates, options.draws, Path(folder)))
    measured = [draw.model_ms for draw in drawn]
    for name, times in (("in a loop", in_loop), ("as in the model", in_context)):
        sums = [draw.sum_us(spec, times) for draw in drawn]
        close, large = close_kernels(spec, drawn[-1], times)
        correlation = spearmanr(sums, measured).statistic
        print(
            f"{spec.name}, {name}: correlation {correlation:.3f} of {len(drawn)}; {close} of {large} kernels within 15%"
        )


def candidates_of(workspace: Workspace, spec: JobSpec, task: str) -> list[Trial]:
    """Return some of the trials of a task that take at most twice as long as its best, the best first."""
    log = TuningLog(workspace.tuning_log(spec.target_key, task).records)
    ranked = by_time(log.entries())
    near = [entry for entry in ranked if (entry.median_us or 0.0) <= SLOWEST * (ranked[0].median_us or 0.0)]
    return log.trials_of(near[:: max(1, len(near) // CANDIDATES)][:CANDIDATES])


def time_candidates(
    paths: JobPaths, spec: JobSpec, model: JobModel, candidates: Mapping[str, Sequence[Trial]], folder: Path
) -> tuple[Times, Times]:
    """Build the candidates of all tasks, and time them in a loop and as in the model."""
    indices = {task.hash: index for index, task in enumerate(spec.tasks)}
    items = [(task, trial) for task, trials in candidates.items() for trial in trials]
    programs = {task: read_program(paths.task(indices[task]), task) for task in candidates}
    list(retiming.build(items, programs.__getitem__, model.target, folder, int(spec.target["num-cores"])))
    held = nearest_holding(constant_bytes(model.prepared), int(spec.target["num-cores"]))
    contexts = {task.hash: Context(held, task.constants) for task in spec.tasks}
    built = retiming.candidates(items, folder)
    runner = Runner(open_device("llvm"), Timing(warmup=1, repeats=1, min_repeat_ms=5))
    in_loop = {}
    for candidate in (item for task in built.values() for item in task):
        repeats = [runner.time(candidate.library, candidate.trial.args, None)[0] for _ in range(TURNS)]
        in_loop[candidate.trial.hash] = statistics.median(repeats)
    retiming.time_in_turns(built, runner, contexts)
    in_context = {item.trial.hash: item.median_us for task in built.values() for item in task}
    return in_loop, in_context


def draws(
    paths: JobPaths,
    spec: JobSpec,
    model: JobModel,
    candidates: Mapping[str, Sequence[Trial]],
    count: int,
    folder: Path,
) -> Iterator[Draw]:
    """Compile and time a library for each draw; the last has the best of each task."""
    generator = random.Random(SEED)
    kept = KeptObjects(folder / "objects", KEPT_BYTES)
    for number in range(count):
        best = number == count - 1
        trials = {task: some[0] if best else generator.choice(some) for task, some in candidates.items() if some}
        library = folder / f"{number}.so"
        model.compile_tuned(trials, library, kept=kept, children=int(spec.target["num-cores"]))
        yield timed(paths, spec, trials, library)


def timed(paths: JobPaths, spec: JobSpec, trials: Mapping[str, Trial], library: Path) -> Draw:
    """Time a library in processes of its own."""
    (whole,) = submitted(paths, spec)
    arrays = verification_inputs(whole, spec.inputs, None, SEED).arrays
    runtimes = {"ours": Runtime("library", library, kept=whole.kept)}
    with RuntimeComparison(runtimes, spec.inputs, arrays, int(spec.target["num-cores"])) as comparison:
        times = comparison.time(PROCESSES * TIMINGS, kernels_of="ours")["ours"]
    return Draw(trials, times.median_ms, times.fastest_kernels())


def close_kernels(spec: JobSpec, draw: Draw, times: Times) -> tuple[int, int]:
    """Return how many of the large kernels of a library take as long as they were timed, and how many there are."""
    tasks = {task.name: task.hash for task in spec.tasks if task.hash in draw.trials}
    whole_us = sum(kernel.us for kernel in draw.kernels)
    shares = [
        times[draw.trials[tasks[name]].hash] * kernel.calls / kernel.us
        for kernel in draw.kernels
        if kernel.us >= LARGE * whole_us and (name := kernel.name.removeprefix("fused_")) in tasks
    ]
    return sum(abs(share - 1) <= CLOSE for share in shares), len(shares)


if __name__ == "__main__":
    main()
