#!/usr/bin/env python
"""Say how well the estimates of `search/occupancy.py` and `search/tensor_cores.py` rank kernels that an H100 has timed.

    python scripts/gpu/check_estimates.py

`h100_trials.jsonl.xz` has the trials that `prove.sh` made: of each its network and precision, the hash of its task, its
schedule as a trace of TVM, the microseconds of a run, and the registers and the memory that the compiler gave it.
Needs no GPU. Three numbers for each kind of kernel: `of a task` is Spearman's correlation of the ranks among the trials
of a task, averaged over the tasks; `best` how many times the shortest time the trial takes that is estimated to be
fastest, and `chance` what a trial at random takes, both as geometric means; `of all` is the correlation of all
trials, whatever their task. A task needs four trials that differ.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

import numpy as np
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).parent))
import forecast
import models

from autotune.tvm_backend.load import load_for_tuning

TRIALS = Path(__file__).with_name("h100_trials.jsonl.xz")
LEAST = 4
DIFFERENT = 1.1  # the longest time divided by the shortest


@dataclass(frozen=True)
class Estimated:
    """A trial: its task, what it took, and what it is estimated to take, in microseconds up to one factor."""

    task: str
    kind: str
    us: float
    estimate: float


def main() -> None:
    load_for_tuning("cuda", ())
    kinds = defaultdict(list)
    for trial in estimated():
        kinds[trial.kind].append(trial)
    print("| kernels | trials | tasks | of a task | best | chance | of all |\n|---|---:|---:|---:|---:|---:|---:|")
    for kind, trials in sorted(kinds.items()):
        print(f"| {kind} | {len(trials)} | {row(trials)} |")


def estimated() -> Iterator[Estimated]:
    """Yield the trials of the file for which there is an estimate."""
    trials = [json.loads(line) for line in lzma.decompress(TRIALS.read_bytes()).splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        for (network, precision), group in groupby(trials, lambda item: (item["network"], item["precision"])):
            yield from _of_network(models.write(network, Path(folder)), precision, list(group))


def _of_network(path: Path, precision: Any, trials: Sequence[dict[str, Any]]) -> Iterator[Estimated]:
    from autotune.tvm_backend.search.tasks import extract_tasks
    from autotune.tvm_backend.target import resolve_target, tvm_target

    target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description)
    tasks = {task.spec.hash: task for task in extract_tasks(forecast.prepared(path, target, precision), target)}
    for hash, group in groupby(trials, lambda item: item["task"]):
        if hash in tasks:
            yield from _of_task(tasks[hash], target, list(group))
        else:
            print(f"{path.stem} in {precision} has no task {hash} any more", file=sys.stderr)


def _of_task(task: Any, target: Any, trials: Sequence[dict[str, Any]]) -> Iterator[Estimated]:
    from autotune.tvm_backend.search.design_space import before_postprocessing, sampled
    from autotune.tvm_backend.search.nest import NestFeatures
    from autotune.tvm_backend.search.scores import judge_of

    nests = NestFeatures(task.program, target)
    for trial in trials:
        instructions = before_postprocessing(trial["trace"])
        judge = judge_of(nests, instructions)
        if judge is not None:
            (speed,) = judge([np.array([item], dtype=np.float64) for item in sampled(trial["trace"])])
            kind = "on tensor cores" if "auto_tensorize" in str(instructions) else "others"
            yield Estimated(task.spec.hash, kind, trial["us"], task.spec.gflop / max(speed, 1e-12))


def row(trials: Sequence[Estimated]) -> str:
    tasks = [list(group) for _, group in groupby(trials, lambda item: item.task)]
    large = [task for task in tasks if len(task) >= LEAST and _longest(task) > DIFFERENT * _shortest(task)]
    ranks = mean(_correlation(task) for task in large)
    best = geometric_mean(min(task, key=lambda item: item.estimate).us / _shortest(task) for task in large)
    chance = geometric_mean(geometric_mean(item.us for item in task) / _shortest(task) for task in large)
    return f"{len(large)} | {ranks:.2f} | {best:.2f} | {chance:.2f} | {_correlation(trials):.2f}"


def _shortest(trials: Sequence[Estimated]) -> float:
    return min(item.us for item in trials)


def _longest(trials: Sequence[Estimated]) -> float:
    return max(item.us for item in trials)


def _correlation(trials: Sequence[Estimated]) -> float:
    value = spearmanr([item.us for item in trials], [item.estimate for item in trials]).statistic
    return 0.0 if np.isnan(value) else float(value)


if __name__ == "__main__":
    main()
