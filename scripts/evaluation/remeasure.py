"""Build the best candidate of every task of some workspaces again, time them twice as they were timed, print JSON.

All workspaces are timed in one go, once all is built, so that a machine that is slower for a while is so for each of
them; and then once more, which tells what a second measurement of one kernel differs by when nothing is wrong.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune import config as settings
from autotune.lending import cpus
from autotune.machine import pin
from autotune.storage import formats
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import Workspace
from autotune.tvm_backend.build import build_library
from autotune.tvm_backend.export import best_trials
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.run import Runner, Timing, open_device
from autotune.tvm_backend.space import replay
from autotune.tvm_backend.tasks import read_program

TIMES = 3  # measured so often, of which the median counts: this one is to be right


@dataclass(frozen=True)
class Best:
    """The best kernel of a task of a workspace, built again."""

    name: str
    trial: Trial
    library: Path


def main() -> None:
    roots = [Path(word) for word in sys.argv[1:]]
    config = settings.load(Workspace(roots[0]).config)
    pin(cpus(config).cpu_device)
    load_tvm("llvm")
    measure = config.measure
    runner = Runner(open_device("llvm"), Timing(measure.warmup, measure.repeats, measure.min_repeat_ms))
    with tempfile.TemporaryDirectory() as folder:
        kernels = {str(root): list(built(Workspace(root), Path(folder) / root.name)) for root in roots}
        again, control = (
            {root: [_time(runner, item) for item in found] for root, found in kernels.items()} for _ in "12"
        )
    rows = {
        root: [
            {"name": item.name, "logged_us": item.trial.best_us, "again_us": first, "control_us": second}
            for item, first, second in zip(found, again[root], control[root], strict=True)
        ]
        for root, found in kernels.items()
    }
    print(json.dumps(rows))


def built(workspace: Workspace, folder: Path) -> Iterator[Best]:
    """The best kernels of all tasks of a workspace, each once."""
    import tvm

    folder.mkdir()
    for paths in workspace.job_list():
        spec = formats.read(JobSpec, paths.spec)
        best, target = best_trials(workspace, spec), tvm.target.Target(spec.target)
        for index in spec.tunable:
            task = spec.tasks[index]
            library = folder / f"{task.hash}.so"
            if task.hash in best and not library.exists():
                trial = best[task.hash]
                program = read_program(paths.task(index), task.hash)
                build_library(replay([trial], program, target)[0].sch.mod, target, library)
                yield Best(task.name, trial, library)


def _time(runner: Runner, item: Best) -> float:
    return statistics.median(statistics.median(runner.time(item.library, item.trial.args, None)) for _ in range(TIMES))


if __name__ == "__main__":
    main()
