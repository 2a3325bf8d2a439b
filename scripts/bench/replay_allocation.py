#!/usr/bin/env python
"""What does the choice of the next task and of the size of its batch do to the latency of a model?

    python scripts/bench/replay_allocation.py WORKSPACE... --trials 64 128 256

Each job of the workspaces is played with smaller budgets than it had: the next trials of a task are those of its log,
in their order. Only the choice of the task and the size of its batch are made anew. The table has the sum of the tasks'
best times, over that of Ansor's gradient with whole rounds (Zheng et al., OSDI 2020, section 6.2, without its term for
similar tasks): the geometric mean over jobs and budgets, its 95% interval from 1,000 bootstraps over jobs, the smallest
and the largest. It takes seconds, and the machine need not be idle.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.planning.budget import batch
from autotune.planning.gain import expected_gain
from autotune.planning.view import JobView, TaskView
from autotune.storage import formats
from autotune.storage.formats import JobSpec
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog

FIRST_BATCH = 2
BOOTSTRAPS = 1000


@dataclass(frozen=True)
class Rule:
    """Whether batches grow with the trials of a task, and what a task promises. The highest promise is next."""

    growing: bool
    promise: Callable[[JobView, TaskView], float]


def equal(job: JobView, task: TaskView) -> float:
    return -len(task.running_best)


def gain(job: JobView, task: TaskView) -> float:
    """Ansor's gradient without its term for similar tasks."""
    return expected_gain(task, job.trials_per_round)


def gain_by_speed(job: JobView, task: TaskView) -> float:
    """The planner's."""
    return expected_gain(task, job.trials_per_round, job.fastest)


RULES = {
    "gradient": Rule(False, gain),
    "gradient, growing rounds": Rule(True, gain),
    "ours: by speed, growing rounds": Rule(True, gain_by_speed),
    "uniform": Rule(False, equal),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspaces", type=Path, nargs="+")
    parser.add_argument("--trials", type=int, nargs="+", default=[64, 96, 128, 192, 256, 400], help="budgets")
    options = parser.parse_args()
    jobs = [job for folder in options.workspaces for job in logged_jobs(Workspace(folder))]
    runs = [(job, trials) for job in jobs for trials in options.trials if is_worth_playing(job, trials)]
    if not runs:
        sys.exit("replay_allocation: no job of these workspaces has more than these --trials")
    print(f"{len({id(job) for job, _ in runs})} jobs, {len(runs)} runs\n")
    print("| rule | latency | from | to |\n| --- | --- | --- | --- |")
    plain = [played(job, trials, RULES["gradient"]) for job, trials in runs]
    for name, rule in RULES.items():
        sums = [played(job, trials, rule) for job, trials in runs]
        ratios = [after / before for after, before in zip(sums, plain, strict=True)]
        by_job: dict[int, list[float]] = {}
        for (job, _), ratio in zip(runs, ratios, strict=True):
            by_job.setdefault(id(job), []).append(ratio)
        low, high = interval(list(by_job.values()))
        mean = statistics.geometric_mean(ratios)
        print(f"| {name} | {mean:.3f} ({low:.3f} to {high:.3f}) | {min(ratios):.3f} | {max(ratios):.3f} |")


def interval(ratios: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95% interval of the geometric mean, by a bootstrap over jobs. `ratios` has those of each job."""
    draw = random.Random(0)
    means = [
        statistics.geometric_mean(itertools.chain.from_iterable(draw.choices(ratios, k=len(ratios))))
        for _ in range(BOOTSTRAPS)
    ]
    quantiles = statistics.quantiles(means, n=40)
    return quantiles[0], quantiles[-1]


def logged_jobs(workspace: Workspace) -> Iterator[JobView]:
    """Yield each job with all trials that its tasks have in the logs."""
    for paths in workspace.job_list():
        spec = formats.read(JobSpec, paths.spec)
        tasks = []
        for index in spec.tunable:
            task = spec.tasks[index]
            best = math.inf
            curve = list[float]()
            for entry in TuningLog(workspace.tuning_log(spec.target_key, task.hash).records).entries():
                best = min(best, math.inf if entry.median_us is None else entry.median_us)
                curve.append(best)
            if curve and math.isfinite(best):
                tasks.append(TaskView(task.hash, task.weight, len(curve), tuple(curve), gflop=task.gflop))
        per_round = spec.trials_per_round
        yield JobView(spec.id, "cpu", tuple(tasks), (), spec.trials, per_round, patience=0, min_gain=0.0)


def is_worth_playing(job: JobView, trials: int) -> bool:
    return FIRST_BATCH * len(job.tasks) <= trials < job.trials_done


def played(job: JobView, trials: int, rule: Rule) -> float:
    """Return the sum of the best times, in microseconds, after so many trials."""
    whole = [task.running_best for task in job.tasks]
    tasks = [cut(task, FIRST_BATCH) for task in job.tasks]
    while True:
        view = replace(job, tasks=tuple(tasks), trials=trials)
        index = next_task(view, whole, rule)
        tried = len(tasks[index].running_best) if index is not None else 0
        count = batch(view, 0, tried=tried if rule.growing else None)
        if index is None or not count:
            return sum(task.weight * task.best for task in tasks)
        tasks[index] = cut(replace(tasks[index], running_best=whole[index]), tried + count)


def next_task(view: JobView, whole: Sequence[Sequence[float]], rule: Rule) -> int | None:
    """Return the index of the task that promises most of those whose log goes on; None if there is none."""
    left = [index for index, task in enumerate(view.tasks) if len(task.running_best) < len(whole[index])]
    return max(left, key=lambda index: rule.promise(view, view.tasks[index]), default=None)


def cut(task: TaskView, trials: int) -> TaskView:
    """Return a task as it was after so many trials."""
    seen = task.running_best[:trials]
    return replace(task, trials=len(seen), running_best=seen)


if __name__ == "__main__":
    main()
