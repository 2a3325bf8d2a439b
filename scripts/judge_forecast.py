#!/usr/bin/env python3
"""Judge the forecast of the latency on logs that it does not see.

Each job of the workspaces is cut after a quarter, half and three quarters of its trials, and its latency at the end
is forecast from what is left. Beside the forecast stand "no change" and a straight line in the logarithm of the
trials through the last half of the curve. With `--samples` random sets of the tasks of all jobs are judged too, as if
each were a model; they share tasks, so they are not independent.

    python scripts/judge_forecast.py WORKSPACE... [--samples N] [--tasks N] [--seed N]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.commands.report import history
from autotune.commands.report.trials import TaskTrials
from autotune.planning.latency_forecast import Curve, forecast
from autotune.storage.formats import TaskSpec
from autotune.storage.paths import Workspace

PARTS = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Task:
    """The trials of one task in the order of the job: when each ended, and its time or infinity."""

    weight: int
    trials: tuple[tuple[float, float], ...]
    gflop: float = 0.0


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


def judge(tasks: Sequence[Task], part: float, per_round: int) -> Judged | None:
    """Forecast the end from a part of the trials; None if a task has no time by then."""
    total = sum(len(task.trials) for task in tasks)
    seen = cut(tasks, round(total * part))
    if not all(curve.known for curve in seen):
        return None
    found = forecast(seen, total - round(total * part), per_round)
    if found is None:
        return None
    truth = latency(cut(tasks, total))
    line = straight_line(tasks, total, part)
    return Judged(
        part, found.median_ms / truth, found.low_ms / truth, found.high_ms / truth, latency(seen) / truth, line / truth
    )


def straight_line(tasks: Sequence[Task], total: int, part: float) -> float:
    """The end of the line through the logarithms of trials and latency over the last half of what was seen."""
    counts = [round(total * part * (0.5 + 0.5 * step / 8)) for step in range(9)]
    points = [(math.log(count), curves) for count in counts if count and (curves := cut(tasks, count))]
    known = [(x, math.log(latency(curves))) for x, curves in points if all(curve.known for curve in curves)]
    if len(known) < 2:
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
    parser.add_argument("--samples", type=int, default=0, help="random models made of the tasks of all jobs")
    parser.add_argument("--tasks", type=int, default=8, help="tasks of such a model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    jobs, pool, per_round = list[list[Task]](), list[Task](), 16
    for workspace in map(Workspace, options.workspaces):
        for paths in workspace.job_list():
            seen = history.of(workspace, paths)
            specs = seen.spec.tasks
            tasks = [task_of(spec, each) for spec, each in zip(specs, seen.tasks(), strict=True)]
            timed = [task for task in tasks if any(us < math.inf for _, us in task.trials)]
            per_round = seen.spec.trials_per_round
            if timed:
                jobs.append(timed)
                pool += timed
    if not jobs:
        print("judge_forecast: no job has trials", file=sys.stderr)
        return 1
    show([found for tasks in jobs for part in PARTS if (found := judge(tasks, part, per_round))], "jobs")
    rng = random.Random(options.seed)
    models = [rng.sample(pool, min(options.tasks, len(pool))) for _ in range(options.samples)]
    sampled = [found for tasks in models for part in PARTS if (found := judge(tasks, part, per_round))]
    if sampled:
        show(sampled, f"random models of {min(options.tasks, len(pool))} tasks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
