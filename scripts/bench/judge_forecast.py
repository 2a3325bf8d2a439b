#!/usr/bin/env python3
"""Judge the forecast of the latency on logs that it does not see.

Each job of the workspaces is cut after a quarter, half and three quarters of its trials, and its latency at the end
is forecast from what is left. Beside the forecast stand "no change" and a straight line in the logarithm of the
trials through the last half of the curve. With `--samples` random sets of the tasks of all jobs are judged too, as if
each were a model; they share tasks, so they are not independent.

With `--leave-out` the constants of the forecast are fitted anew for each network, to the logs of all others, and its
forecasts are made with these. Jobs are of one network if they have a name, a model or a task in common. Each network
counts once, however many jobs it has. Two of the constants are tried on a grid. The ratios between savings and
expected ones then give the ends of the interval.

    python scripts/bench/judge_forecast.py WORKSPACE... [--leave-out] [--samples N] [--tasks N] [--seed N]
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.commands.report import history
from autotune.commands.report.trials import TaskTrials
from autotune.planning.latency import TYPICAL, Curve, Typical, expected, forecast, shared_out
from autotune.storage.formats import JobSpec, TaskSpec
from autotune.storage.paths import JobPaths, Workspace

PARTS = (0.25, 0.5, 0.75)
FEWEST = 60  # trials of a job; with fewer, most tasks have had one round
POWERS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
UNSEEN = (0.03, 0.1, 0.2, 0.3, 0.5)
# What is below the interval in the logs that it is fitted to, and what is above. Elsewhere it should be a tenth each:
# 0.9 (1 + 1/n) of n jobs have to lie below an end for that, as in conformal prediction, and there are some forty.
TAIL = 0.08


@dataclass(frozen=True)
class Task:
    """The trials of one task in the order of the job: when each ended, and its time or infinity."""

    weight: int
    trials: tuple[tuple[float, float], ...]
    gflop: float = 0.0


@dataclass(frozen=True)
class Job:
    """The tasks of a job that have a time. `marks` are what it has in common with other jobs of its network."""

    marks: frozenset[str]
    tasks: tuple[Task, ...]
    per_round: int


@dataclass(frozen=True)
class Case:
    """A job cut after a part of its trials, what two simple rules say of its end, and the truth, in milliseconds.

    `more` is how many of the trials that are left each task should get.
    """

    part: float
    seen: tuple[Curve, ...]
    more: tuple[int, ...]
    left: int
    per_round: int
    truth: float
    unchanged: float
    line: float

    @property
    def gain(self) -> float:
        """The logarithm of how much faster the model became."""
        return max(0.0, math.log(self.unchanged / self.truth))


@dataclass(frozen=True)
class Judged:
    """One forecast: relative to the truth, which is 1."""

    part: float
    median: float
    low: float
    high: float
    unchanged: float
    line: float

    @property
    def held(self) -> bool:
        return self.low <= 1 <= self.high


def task_of(spec: TaskSpec, found: TaskTrials) -> Task:
    return Task(spec.weight, tuple((trial.at, trial.median_us or math.inf) for trial in found.all), spec.gflop)


def cut(tasks: Sequence[Task], count: int) -> list[Curve]:
    """The curves after the first `count` trials of all tasks."""
    order = sorted(
        (trial[0], index, place) for index, task in enumerate(tasks) for place, trial in enumerate(task.trials)
    )
    kept = [0] * len(tasks)
    for _, index, place in order[:count]:
        kept[index] = max(kept[index], place + 1)
    return [Curve(task.weight, best(task, kept[index]), True, task.gflop) for index, task in enumerate(tasks)]


def best(task: Task, count: int) -> tuple[float, ...]:
    found, low = list[float](), math.inf
    for _, us in task.trials[:count]:
        low = min(low, us)
        found.append(low)
    return tuple(found)


def latency(curves: Sequence[Curve]) -> float:
    return sum(curve.weight * curve.best[-1] for curve in curves) / 1e3


def cases(job: Job) -> list[Case]:
    """The job cut after each part; without those by which a task has no time."""
    total, found = sum(len(task.trials) for task in job.tasks), list[Case]()
    truth = latency(cut(job.tasks, total))
    for part in PARTS:
        count = round(total * part)
        seen = cut(job.tasks, count)
        if all(curve.known for curve in seen):
            line = straight_line(job.tasks, total, part)
            more = tuple(shared_out(seen, total - count, job.per_round))
            found.append(Case(part, tuple(seen), more, total - count, job.per_round, truth, latency(seen), line))
    return found


def judge(case: Case, typical: Typical = TYPICAL) -> Judged:
    """Forecast the end of a case, and hold it against the truth."""
    found = forecast(case.seen, case.left, case.per_round, typical)
    if found is None:
        raise ValueError("no task has a time")
    times = (found.median_ms, found.low_ms, found.high_ms, case.unchanged, case.line)
    return Judged(case.part, *(time / case.truth for time in times))


def networks(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs of each network: those that have a mark in common, with each other or through a third."""
    found = list[list[Job]]()
    for job in jobs:
        near = [group for group in found if any(job.marks & other.marks for other in group)]
        found = [group for group in found if group not in near] + [[job, *(each for group in near for each in group)]]
    return found


def left_out(groups: Sequence[Sequence[Case]]) -> list[Judged]:
    """Judge each network with the constants that fit the others best."""
    judged = list[Judged]()
    for place, group in enumerate(groups):
        typical = fit([*groups[:place], *groups[place + 1 :]])
        judged += [judge(case, typical) for case in group]
    print(f"constants that fit all: {fit(groups)}")
    return judged


def fit(groups: Sequence[Sequence[Case]]) -> Typical:
    """Return the constants that fit networks best."""
    tried = [fitted(groups, Typical(power, unseen)) for power, unseen in itertools.product(POWERS, UNSEEN)]
    return min(tried, key=lambda pair: pair[0])[1]


def fitted(groups: Sequence[Sequence[Case]], start: Typical) -> tuple[float, Typical]:
    """Fit the ends of the interval. Return them with the loss, the smaller the better.

    The loss is the mean pinball loss of both ends and of the median, for the logarithm of gain and noise.
    """
    ratios, weights, spreads = list[float](), list[float](), list[float]()
    for group in groups:
        for case in group:
            found = expected(case.seen, case.more, start)
            ratios.append(math.log((case.gain + start.noise) / (found.saving + start.noise)))
            spreads.append(max(found.spread, 1e-9))
            weights.append(1 / len(group))
    alone = [ratio / spread for ratio, spread in zip(ratios, spreads, strict=True)]
    low, high = (quantile(alone, weights, part) for part in (TAIL, 1 - TAIL))
    loss = 0.0
    for part, end in ((TAIL, low), (0.5, 0.0), (1 - TAIL, high)):
        missed = [ratio - end * spread for ratio, spread in zip(ratios, spreads, strict=True)]
        loss += sum(weight * max(part * each, (part - 1) * each) for weight, each in zip(weights, missed, strict=True))
    return loss / sum(weights), replace(start, low=round(low, 2), high=round(high, 2))


def quantile(values: Sequence[float], weights: Sequence[float], part: float) -> float:
    """Return the least value that this part of the weight is not above."""
    ordered, reached = sorted(zip(values, weights, strict=True)), 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= part * sum(weights):
            return value
    return ordered[-1][0]


def straight_line(tasks: Sequence[Task], total: int, part: float) -> float:
    """The end of the line through the logarithms of trials and latency over the last half of what was seen."""
    counts = [round(total * part * (0.5 + 0.5 * step / 8)) for step in range(9)]
    points = [(math.log(count), curves) for count in counts if count and (curves := cut(tasks, count))]
    known = [(x, math.log(latency(curves))) for x, curves in points if all(curve.known for curve in curves)]
    if len({x for x, _ in known}) < 2:
        return latency(cut(tasks, counts[-1]))
    slope, start = statistics.linear_regression([x for x, _ in known], [y for _, y in known])
    return math.exp(start + slope * math.log(total))


def show(judged: Sequence[Judged], title: str) -> None:
    print(f"{title}: {len(judged)} forecasts")
    for part in PARTS:
        found = [item for item in judged if item.part == part]
        if not found:
            continue
        width = statistics.median((item.high - item.low) / item.median for item in found)
        error = statistics.fmean(abs(math.log(item.median)) for item in found)
        same = statistics.fmean(abs(math.log(item.unchanged)) for item in found)
        line = statistics.fmean(abs(math.log(item.line)) for item in found)
        held = sum(item.held for item in found) / len(found)
        print(
            f"  after {part:.0%} of the trials ({len(found)}): the interval held {held:.0%}, median width {width:.1%};"
            f" mean error {error:.1%}, no change {same:.1%}, straight line {line:.1%}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("workspaces", nargs="+", type=Path)
    parser.add_argument("--leave-out", action="store_true", help="fit the constants to the other networks")
    parser.add_argument("--samples", type=int, default=0, help="random models made of the tasks of all jobs")
    parser.add_argument("--tasks", type=int, default=8, help="tasks of such a model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    found = [
        job_of(workspace, paths) for workspace in map(Workspace, options.workspaces) for paths in workspace.job_list()
    ]
    # Jobs that have the same trials count once, as do those in a copy of a workspace.
    jobs = list({job.tasks: job for job in found if sum(len(task.trials) for task in job.tasks) >= FEWEST}.values())
    if not jobs:
        print(f"judge_forecast: no job has {FEWEST} trials", file=sys.stderr)
        return 1
    rng = random.Random(options.seed)
    show([judge(case) for job in jobs for case in cases(job)], f"{len(jobs)} jobs")
    if options.leave_out:
        groups = [[case for job in group for case in cases(job)] for group in networks(jobs)]
        groups = [group for group in groups if group]
        show(left_out(groups), f"each of {len(groups)} networks with constants of the others")
    pool = [task for job in jobs for task in job.tasks]
    models = [tuple(rng.sample(pool, min(options.tasks, len(pool)))) for _ in range(options.samples)]
    sampled = [judge(case) for tasks in models for case in cases(Job(frozenset(), tasks, jobs[0].per_round))]
    if sampled:
        show(sampled, f"random models of {min(options.tasks, len(pool))} tasks")
    return 0


def job_of(workspace: Workspace, paths: JobPaths) -> Job:
    seen = history.of(workspace, paths)
    spec, tasks = seen.spec, [task_of(task, each) for task, each in zip(seen.spec.tasks, seen.outline(), strict=True)]
    timed = tuple(task for task in tasks if any(us < math.inf for _, us in task.trials))
    return Job(marks_of(spec), timed, spec.trials_per_round)


def marks_of(spec: JobSpec) -> frozenset[str]:
    return frozenset({spec.name, f"model {spec.model_crc32}", *(task.hash for task in spec.tasks)})


if __name__ == "__main__":
    sys.exit(main())
