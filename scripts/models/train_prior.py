#!/usr/bin/env python
"""Train the prior, the cost model that is shipped with autotune, on the logs of workspaces; print how well it ranks.

    python scripts/models/train_prior.py WORKSPACE... --output autotune/tvm_backend/search/priors/llvm.ubj.xz

The workspaces tuned random layers (`random_layers.py`); for GPUs, that of `scripts/gpu/prove.sh` does. Before
the model of all trials is written, five models are trained on four fifths of the tasks each, and rank the trials of
the remaining fifth. With `--start` all models are trained on top of an older prior, and that alone ranks them, too. It
prints three numbers: `rank` is Spearman's correlation, `best of 4` the relative throughput of the best of the four
trials ranked highest, and `chance` that of four trials drawn at random.

A prior that was trained on random schedules alone is wrong about the best ones, which random schedules are far from,
and a search goes where the prior is too hopeful. So the trials of a second workspace are those of searches that start
from it (`--strategy beam`), and the next prior is trained on top of it. That is DAgger (Ross, Gordon and Bagnell,
AISTATS 2011). Those of a third are spread over what such searches hardly try (`spread_trials.py`).
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from autotune.config import Config
from autotune.stages import trial_features
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import JobSpec, StageFile
from autotune.storage.paths import Workspace
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.search.cost_model import Array, CostModel

FOLDS = 5
FIRST = 4
LEAST = 8
TREES = 400


@dataclass(frozen=True)
class TaskTrials:
    """The trials of one task: features and relative throughput of each."""

    name: str
    rows: list[Array]
    throughput: np.ndarray


def main() -> None:
    options = parse()
    load_tvm(options.target)  # with the intrinsics of tensor cores, which trials in fp16 name
    tasks = read([Workspace(folder) for folder in options.workspaces], options.target)
    if not tasks:
        sys.exit(f"train_prior: no task for {options.target} has {LEAST} trials")
    print(f"{len(tasks)} tasks, {sum(len(task.rows) for task in tasks)} trials")
    start = CostModel.deserialise(lzma.decompress(options.start.read_bytes())) if options.start else None
    if start:
        judge("before", tasks, lambda others: start)
    if not options.no_folds and len(tasks) > 1:
        judge("trained", tasks, lambda others: train(others, start))
    if options.output:
        data = lzma.compress(train(tasks, start).serialise(), preset=9)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_bytes(data)
        print(f"{options.output}: {len(data) / 1e3:.0f} kB")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspaces", type=Path, nargs="+")
    parser.add_argument("--target", default="llvm", help="kind of target of which the trials are taken")
    parser.add_argument("--output", type=Path, metavar="FILE.ubj.xz")
    parser.add_argument("--start", type=Path, metavar="FILE.ubj.xz", help="the prior to train on top of")
    parser.add_argument("--no-folds", action="store_true", help="do not judge it first")
    return parser.parse_args()


def read(workspaces: Sequence[Workspace], kind: str) -> list[TaskTrials]:
    """Return the tasks of all jobs for a kind of target, each with the trials of all workspaces that have it."""
    names: dict[str, str] = {}
    by_task: dict[str, dict[str, tuple[Array, float]]] = {}
    for workspace in workspaces:
        for name, task, examples in features_by_task(workspace, kind):
            names.setdefault(task, name)
            trials = zip(examples.hashes, examples.rows, examples.times_us, strict=True)
            by_task.setdefault(task, {}).update({hash: (rows, time) for hash, rows, time in trials})
    tasks = (as_task(names[task], trials) for task, trials in by_task.items())
    return [task for task in tasks if len(task.rows) >= LEAST and task.throughput.any()]


def features_by_task(workspace: Workspace, kind: str) -> Iterator[tuple[str, str, trial_features.TrialFeatures]]:
    """Yield job, task and trials with their features. Features that no job has extracted yet are extracted now."""
    for stage, index in tasks_of(workspace, kind):
        if trials := stage.log(index).trials():
            task = f"{stage.spec.target_key}/{stage.spec.tasks[index].hash}"
            yield stage.paths.folder.name, task, trial_features.of_task(stage, index, trials)


def tasks_of(workspace: Workspace, kind: str) -> Iterator[tuple[Stage, int]]:
    """Yield the tasks of all jobs for a kind of target: a stage that reads the job's files, and the task's number."""
    config = Config()
    for paths in workspace.job_list():
        spec = formats.read(JobSpec, paths.spec)
        if spec.target_kind == kind:
            stage = Stage(workspace, paths, spec, config, StageFile(0, 0, "train"), ())
            yield from ((stage, index) for index in spec.tunable)


def as_task(name: str, trials: dict[str, tuple[Array, float]]) -> TaskTrials:
    rows, times = zip(*trials.values(), strict=True)
    usable, throughput = trial_features.TrialFeatures(list(trials), rows, times).labelled()
    return TaskTrials(name, usable, np.array(throughput))


def train(tasks: Sequence[TaskTrials], start: CostModel | None) -> CostModel:
    rows = [row for task in tasks for row in task.rows]
    return CostModel.train(rows, np.concatenate([task.throughput for task in tasks]), start, TREES)


def judge(name: str, tasks: Sequence[TaskTrials], model_of: Callable[[Sequence[TaskTrials]], CostModel]) -> None:
    """Print how well models of the tasks of other folds rank those of each fold."""
    ranks = []
    firsts = []
    chances = []
    for fold in range(FOLDS):
        model = model_of([task for index, task in enumerate(tasks) if index % FOLDS != fold])
        for task in tasks[fold::FOLDS]:
            scores = model.score(task.rows)
            ranks.append(spearmanr(scores, task.throughput).statistic)
            firsts.append(task.throughput[np.argsort(-scores)[:FIRST]].max())
            draws = np.random.default_rng(0).permuted(np.tile(task.throughput, (100, 1)), axis=1)[:, :FIRST]
            chances.append(draws.max(axis=1).mean())
    best = f"best of {FIRST} {np.mean(firsts):.2f}   chance {np.mean(chances):.2f}"
    print(f"{name}: rank {np.nanmedian(ranks):.2f}   {best}")


if __name__ == "__main__":
    main()
