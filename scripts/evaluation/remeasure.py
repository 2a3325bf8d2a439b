"""Build the best candidate of every task of a workspace again, time it with the same settings, print JSON."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune import config as settings
from autotune.lending import cpus
from autotune.machine import pin
from autotune.storage import formats
from autotune.storage.formats import JobSpec
from autotune.storage.paths import Workspace
from autotune.tvm_backend.build import build_library
from autotune.tvm_backend.export import best_trials
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.run import Runner, Timing, open_device
from autotune.tvm_backend.space import replay
from autotune.tvm_backend.tasks import read_program

TIMES = 3  # measured so often, of which the median counts: this one is to be right


def main() -> None:
    workspace = Workspace(Path(sys.argv[1]))
    config = settings.load(workspace.config)
    pin(cpus(config).cpu_device)
    load_tvm("llvm")
    measure = config.measure
    runner = Runner(open_device("llvm"), Timing(measure.warmup, measure.repeats, measure.min_repeat_ms))
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for paths in workspace.job_list():
            spec = formats.read(JobSpec, paths.spec)
            best = best_trials(workspace, spec)
            for index in spec.tunable:
                task = spec.tasks[index]
                if task.hash in best and task.hash not in found:
                    program = read_program(paths.task(index), task.hash)
                    again = _time(runner, best[task.hash], program, spec, Path(folder))
                    found[task.hash] = {"name": task.name, "logged_us": best[task.hash].best_us, "again_us": again}
    print(json.dumps(list(found.values())))


def _time(runner: Runner, trial: Any, program: Any, spec: JobSpec, folder: Path) -> float:
    import tvm

    target = tvm.target.Target(spec.target)
    library = folder / f"{trial.hash}.so"
    build_library(replay([trial], program, target)[0].sch.mod, target, library)
    return statistics.median(statistics.median(runner.time(library, trial.args, None)) for _ in range(TIMES))


if __name__ == "__main__":
    main()
