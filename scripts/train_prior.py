#!/usr/bin/env python
"""Train the prior, the cost model that comes with autotune, on the logs of workspaces, and say how well it ranks.

    python scripts/train_prior.py WORKSPACE... --output autotune/tvm_backend/priors/llvm.ubj.xz

The workspaces tuned random layers (`scripts/random_layers.py`). Before the model of all trials is written, a model of
four fifths of the tasks ranks the trials of the last fifth, five times: `rank` is Spearman's correlation, `best of 4`
the throughput of the best of the first four against the task's best, and `chance` that of four drawn blindly.
"""

from __future__ import annotations

import argparse
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from autotune.config import Config
from autotune.stages import features
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import JobSpec, StageFile
from autotune.storage.paths import Workspace
from autotune.tvm_backend.cost_model import Array, CostModel

FOLDS = 5
FIRST = 4
LEAST = 8


@dataclass(frozen=True)
class Task:
    """The trials of one task: features and relative throughput of each."""

    name: str
    rows: list[Array]
    throughput: np.ndarray


def main() -> None:
    options = parse()
    tasks = [task for folder in options.workspaces for task in read(Workspace(folder), options.target)]
    print(f"{len(tasks)} tasks, {sum(len(task.rows) for task in tasks)} trials")
    if not options.no_folds:
        judge(tasks)
    if options.output:
        data = lzma.compress(train(tasks).serialise(), preset=9)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_bytes(data)
        print(f"{options.output}: {len(data) / 1e3:.0f} kB")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspaces", type=Path, nargs="+")
    parser.add_argument("--target", default="llvm", help="kind of target of which the trials are taken")
    parser.add_argument("--output", type=Path, metavar="FILE.ubj.xz")
    parser.add_argument("--no-folds", action="store_true", help="do not judge it first")
    return parser.parse_args()


def read(workspace: Workspace, kind: str) -> list[Task]:
    """The tasks of all jobs for a kind of target; features that no job has extracted yet are extracted."""
    config, seen, found = Config(), set[str](), []
    for paths in workspace.job_list():
        spec = formats.read(JobSpec, paths.spec)
        if spec.target_kind != kind:
            continue
        stage = Stage(workspace, paths, spec, config, StageFile(0, 0, "train"), ())
        for index in spec.tunable:
            trials = stage.log(index).trials()
            if spec.tasks[index].hash not in seen and len(trials) >= LEAST and any(trial.best_us for trial in trials):
                seen.add(spec.tasks[index].hash)
                found.append(as_task(paths.folder.name, features.sample(stage, index, trials)))
    return found


def as_task(name: str, sample: features.Sample) -> Task:
    times = np.array(sample.times_us)
    best = times[times > 0].min()
    relative = np.divide(best, times, out=np.zeros_like(times), where=times > 0)
    usable = [index for index, rows in enumerate(sample.rows) if len(rows)]
    return Task(name, [sample.rows[index] for index in usable], relative[usable])


def train(tasks: Sequence[Task]) -> CostModel:
    rows = [row for task in tasks for row in task.rows]
    return CostModel.train(rows, np.concatenate([task.throughput for task in tasks]))


def judge(tasks: Sequence[Task]) -> None:
    ranks, firsts, chances = [], [], []
    for fold in range(FOLDS):
        model = train([task for index, task in enumerate(tasks) if index % FOLDS != fold])
        for task in tasks[fold::FOLDS]:
            scores = model.score(task.rows)
            ranks.append(spearmanr(scores, task.throughput).statistic)
            firsts.append(task.throughput[np.argsort(-scores)[:FIRST]].max())
            draws = np.random.default_rng(0).permuted(np.tile(task.throughput, (100, 1)), axis=1)[:, :FIRST]
            chances.append(draws.max(axis=1).mean())
    print(f"rank {np.median(ranks):.2f}   best of {FIRST} {np.mean(firsts):.2f}   chance {np.mean(chances):.2f}")


if __name__ == "__main__":
    main()
