#!/usr/bin/env python
"""Say how well the estimates of `search/occupancy.py` and `search/tensor_cores.py` rank kernels that an H100 has timed.

    python scripts/gpu/check_estimates.py

`h100_trials.jsonl.xz` has the trials that `prove.sh` made, behind the task of each: its network and precision, its
tensor program, its operations in 1e9. A trial has its schedule as a trace of TVM, the microseconds of a run, and the
registers and the memory that the compiler gave it.
Needs no GPU. Three numbers for each kind of kernel: `of a task` is Spearman's correlation of the ranks among the trials
of a task, averaged over the tasks; `best` how many times the shortest time the trial takes that is estimated to be
fastest, and `chance` what a trial at random takes, both as geometric means; `of all` is the correlation of all
trials, whatever their task. A task needs four trials that differ. The costs were fitted to these trials:
`fit_estimates.py` says how well the estimates do on networks that they were not fitted to.
"""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from autotune.tvm_backend.load import load_for_tuning

TRIALS = Path(__file__).with_name("h100_trials.jsonl.xz")
LEAST = 4
DIFFERENT = 1.1  # the longest time divided by the shortest


TENSOR_CORES = "on tensor cores"
NESTS = "others"
Costs = Any  # `NestCosts` or `TensorCosts`


@dataclass(frozen=True)
class Trial:
    """A trial: its network and precision, the microseconds that it took, and what is estimated for some costs, [n].

    Estimates are in microseconds up to one factor.
    """

    network: tuple[str, str]
    task: str
    kind: str
    us: float
    estimate: Callable[[Sequence[Costs]], Any]


def main() -> None:
    load_for_tuning("cuda", ())
    print("| kernels | trials | tasks | of a task | best | chance | of all |\n|---|---:|---:|---:|---:|---:|---:|")
    for kind, (trials, costs) in by_kind().items():
        print(f"| {kind} | {len(trials)} | {row(trials, costs)} |")


def by_kind() -> dict[str, tuple[list[Trial], Costs]]:
    """Return the trials of each kind of kernel, and what such kernels cost."""
    from autotune.tvm_backend.search.occupancy import NEST_COSTS
    from autotune.tvm_backend.search.tensor_cores import TENSOR_COSTS

    trials = list(estimated())
    costs = {TENSOR_CORES: TENSOR_COSTS, NESTS: NEST_COSTS}
    return {kind: ([trial for trial in trials if trial.kind == kind], costs[kind]) for kind in costs}


def estimated() -> Iterator[Trial]:
    """Yield the trials of the file for which there is an estimate."""
    import tvm

    from autotune.tvm_backend.search.nest import NestFeatures
    from autotune.tvm_backend.target import resolve_target, tvm_target

    target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description)
    for record in map(json.loads, lzma.decompress(TRIALS.read_bytes()).splitlines()):
        if "program" in record:
            task = record
            nests = NestFeatures(tvm.ir.load_json(json.dumps(record["program"])), target)
        else:
            yield from _of_trial(task, nests, record)


def _of_trial(task: Mapping[str, Any], nests: Any, trial: Mapping[str, Any]) -> Iterator[Trial]:
    from autotune.tvm_backend.search.design_space import before_postprocessing, sampled
    from autotune.tvm_backend.search.scores import judge_of

    instructions = before_postprocessing(trial["trace"])
    if judge_of(nests, instructions) is not None:
        kind = TENSOR_CORES if "auto_tensorize" in str(instructions) else NESTS
        decisions = [np.array(item, dtype=np.float64) for item in sampled(trial["trace"])]
        estimate = partial(_estimate, nests, instructions, decisions, task["gflop"])
        yield Trial((task["network"], task["precision"]), task["task"], kind, trial["us"], estimate)


def _estimate(nests: Any, instructions: Any, decisions: Sequence[Any], gflop: float, costs: Sequence[Costs]) -> Any:
    """Judge a trial as many times as there are costs, all at once."""
    from autotune.tvm_backend.search.occupancy import NestCosts
    from autotune.tvm_backend.search.scores import GpuCosts, judge_of

    kind = type(costs[0])
    all_costs = kind(**{item.name: np.array([getattr(one, item.name) for one in costs]) for item in fields(kind)})
    judge = judge_of(nests, instructions, GpuCosts(**{"nests" if kind is NestCosts else "tensor_cores": all_costs}))
    assert judge is not None, "the caller knows that there is one"
    return gflop / np.maximum(judge([np.repeat(item[None], len(costs), axis=0) for item in decisions]), 1e-12)


def row(trials: Sequence[Trial], costs: Costs) -> str:
    estimates = {id(trial): float(trial.estimate([costs])[0]) for trial in trials}
    ranked = [(trial.us, estimates[id(trial)]) for trial in trials]
    tasks = [[(trial.us, estimates[id(trial)]) for trial in task] for task in tasks_of(trials)]
    ranks = mean(map(_correlation, tasks))
    best = geometric_mean(first_pick(task) for task in tasks)
    chance = geometric_mean(geometric_mean(us for us, _ in task) / min(task)[0] for task in tasks)
    return f"{len(tasks)} | {ranks:.2f} | {best:.2f} | {chance:.2f} | {_correlation(ranked):.2f}"


def tasks_of(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the trials of each task that has enough of them, and whose times differ."""
    tasks = defaultdict(list)
    for trial in trials:
        tasks[trial.task].append(trial)
    return [task for task in tasks.values() if len(task) >= LEAST and _differ([trial.us for trial in task])]


def _differ(times: Sequence[float]) -> bool:
    return max(times) > DIFFERENT * min(times)


def first_pick(ranked: Sequence[tuple[float, float]]) -> float:
    """Return how many times the shortest time it takes what is estimated to be fastest, of times and estimates."""
    return min(ranked, key=lambda item: item[1])[0] / min(ranked)[0]


def _correlation(ranked: Sequence[tuple[float, float]]) -> float:
    times, estimates = zip(*ranked, strict=True)
    if len(set(estimates)) == 1:
        return 0.0
    value = spearmanr(times, estimates).statistic
    return 0.0 if np.isnan(value) else float(value)


if __name__ == "__main__":
    main()
