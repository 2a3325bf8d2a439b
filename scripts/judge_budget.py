#!/usr/bin/env python3
"""Judge where an automatic budget would have ended the jobs of workspaces, by what their later trials found.

The trials of each job are played back in the order in which they were logged, until the job would have ended because
more would gain little. Its latency then stands beside that after three times as many trials, or after all there are.

    python scripts/judge_budget.py WORKSPACE...
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.commands.report import history
from autotune.commands.report.history import History
from autotune.planning.budget import settled
from autotune.planning.view import JobView, TaskView
from autotune.storage.paths import Workspace

_TIMES = 3


@dataclass(frozen=True)
class Task:
    """One task: its weight, its work, and its trials as when each ended and the time in microseconds or infinity."""

    weight: int
    gflop: float
    trials: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class End:
    """Where a job would have ended: after so many trials, and its latency then over that after `later` trials."""

    trials: int
    later: int
    ratio: float


def after(tasks: Sequence[Task], count: int) -> tuple[TaskView, ...]:
    """Return the tasks after the first `count` trials of all of them."""
    order = sorted((at, index) for index, task in enumerate(tasks) for at, _ in task.trials)[:count]
    kept = [0] * len(tasks)
    for _, index in order:
        kept[index] += 1
    return tuple(view(task, number) for task, number in zip(tasks, kept, strict=True))


def view(task: Task, count: int) -> TaskView:
    best, low = list[float](), math.inf
    for _, us in task.trials[:count]:
        low = min(low, us)
        best.append(low)
    return TaskView("", task.weight, count, tuple(best), gflop=task.gflop)


def latency_us(tasks: Sequence[TaskView]) -> float:
    return sum(task.weight * task.best for task in tasks)


def end_of(tasks: Sequence[Task], per_round: int, patience: int = 8, min_gain: float = 0.01) -> End | None:
    """Return where a job would have ended; None if its trials do not reach that far."""
    total = sum(len(task.trials) for task in tasks)
    for count in range(per_round, total + 1, per_round):
        found = after(tasks, count)
        if settled(JobView(1, "cpu", found, (), total, per_round, patience, min_gain)):
            later = min(total, _TIMES * count)
            return End(count, later, latency_us(found) / latency_us(after(tasks, later)))
    return None


def tasks_of(job: History) -> list[Task]:
    """Return the tasks of a job that have trials."""
    pairs = zip(job.spec.tasks, job.tasks(), strict=True)
    found = ((spec, tuple((it.at, it.median_us or math.inf) for it in each.all)) for spec, each in pairs)
    return [Task(spec.weight, spec.gflop, trials) for spec, trials in found if trials]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("workspaces", nargs="+", type=Path)
    judged = 0
    for workspace in map(Workspace, parser.parse_args(arguments).workspaces):
        for paths in workspace.job_list():
            job = history.of(workspace, paths)
            tasks = tasks_of(job)
            total, end = sum(len(task.trials) for task in tasks), end_of(tasks, job.spec.trials_per_round)
            said = f"goes on after all {total} trials"
            if end is not None:
                said = f"ends after {end.trials} of {total} trials, at {end.ratio:.3f} of the latency after {end.later}"
            print(f"{paths.folder.name}: {said}")
            judged += bool(tasks)
    if not judged:
        print("judge_budget: no job has trials", file=sys.stderr)
    return 0 if judged else 1


if __name__ == "__main__":
    sys.exit(main())
