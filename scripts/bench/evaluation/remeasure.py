"""Build the best candidate of every task of some workspaces again, time them as they were timed, print JSON.

Once all is built, all kernels of all workspaces are timed in turns, six times: a machine that is slower for a while is
so for each of them. Every other turn counts for a second measurement, the control, which tells what two measurements
of one kernel differ by when nothing is wrong.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.config import load_config
from autotune.daemon.capacity import cpus
from autotune.machine.hardware import pin
from autotune.storage import formats
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import Workspace
from autotune.tvm_backend.export.timing.retiming import fastest_trials
from autotune.tvm_backend.kernels.build_kernel import build_candidate
from autotune.tvm_backend.kernels.time_kernel import Runner, Timing, open_device
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.search.tasks import read_program

TURNS = 6


@dataclass(frozen=True)
class Best:
    """The best kernel of a task of a workspace, built again."""

    name: str
    trial: Trial
    library: Path


def main() -> None:
    roots = [Path(word) for word in sys.argv[1:]]
    config = load_config(Workspace(roots[0]).config)
    pin(cpus(config).cpu_device)
    load_tvm("llvm")
    measure = config.measure
    runner = Runner(open_device("llvm"), Timing(measure.warmup, measure.repeats, measure.min_repeat_ms))
    with tempfile.TemporaryDirectory() as folder:
        kernels = [(root, item) for root in roots for item in built(Workspace(root), Path(folder) / root.name)]
        turns = [[runner.time(item.library, item.trial.args, None) for _, item in kernels] for _ in range(TURNS)]
    rows: dict[str, list[dict[str, object]]] = {str(root): [] for root in roots}
    for (root, item), *times in zip(kernels, *turns, strict=True):
        logged = {"logged_us": item.trial.median_us, "logged_least_us": min(item.trial.times_us)}
        rows[str(root)].append(
            {"name": item.name, **logged, **_times("again", times[::2]), **_times("control", times[1::2])}
        )
    print(json.dumps(rows))


def _times(name: str, turns: list[list[float]]) -> dict[str, float]:
    """What several turns say of a kernel: of each its median, and its least, which no disturbance makes less."""
    middle, least = (statistics.median(map(of, turns)) for of in (statistics.median, min))
    return {f"{name}_us": middle, f"{name}_least_us": least}


def built(workspace: Workspace, folder: Path) -> Iterator[Best]:
    """The best kernels of all tasks of a workspace, each once."""
    import tvm

    folder.mkdir()
    for paths in workspace.job_list():
        spec = formats.read(JobSpec, paths.spec)
        best = fastest_trials(workspace, spec, 1)
        target = tvm.target.Target(spec.target)
        for index in spec.tunable:
            task = spec.tasks[index]
            library = folder / f"{task.hash}.so"
            if task.hash in best and not library.exists():
                (trial,) = best[task.hash]
                program = read_program(paths.task(index), task.hash)
                build_candidate(trial, program, target, library)
                yield Best(task.name, trial, library)


if __name__ == "__main__":
    main()
