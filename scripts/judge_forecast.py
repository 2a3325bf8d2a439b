#!/usr/bin/env python3
"""Judge the forecast of the latency on logs that it does not see.

Each job of the workspaces is cut after a quarter, half and three quarters of its trials, and its latency at the end
is forecast from what is left. Beside the forecast stand "no change" and a straight line in the logarithm of the
trials through the last half of the curve. With `--samples` random sets of the tasks of all jobs are judged too, as if
each were a model; they share tasks, so they are not independent.

With `--leave-out N` the constants of the forecast are fitted anew for each network, to the logs of all others, and its
forecasts are made with these. The fit takes the best of N sets of constants, drawn at random. Jobs are of one network
if they have a name, a model or a task in common. A hundred sets and ten networks take some minutes.

    python scripts/judge_forecast.py WORKSPACE... [--leave-out N] [--samples N] [--tasks N] [--seed N]
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
from autotune.planning.latency_forecast import TYPICAL, Curve, Typical, forecast
from autotune.storage.formats import JobSpec, TaskSpec
from autotune.storage.paths import JobPaths, Workspace

PARTS = (0.25, 0.5, 0.75)
# Between which values each field of `Typical` is drawn, evenly in its logarithm. The chance of a stall is not fitted:
# it makes the interval reach up to "no change", which the interval score would rather miss by a little than be wider.
RANGES = ((0.7, 6.0), (0.15, 1.5), (6.0, 80.0), (0.5, 8.0), (0.1, 4.0), (0.3, 1.6), (1.02, 2.5), (0.1, 0.1))
FIT_DRAWS = 100  # futures of a forecast while the constants are fitted
MISSED = 10  # how many times as much a miss counts as the width, for an interval of 80%


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
    """A job cut after a part of its trials, what two simple rules say of its end, and the truth, in milliseconds."""

    part: float
    seen: tuple[Curve, ...]
    left: int
    per_round: int
    truth: float
    unchanged: float
    line: float


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

    @property
    def score(self) -> float:
        """The interval score: its width and what it misses the truth by. Smaller is better."""
        return self.high - self.low + MISSED * (max(0.0, self.low - 1) + max(0.0, 1 - self.high))


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
            found.append(Case(part, tuple(seen), total - count, job.per_round, truth, latency(seen), line))
    return found


def judge(case: Case, typical: Typical = TYPICAL, draws: int = 400) -> Judged:
    """Forecast the end of a case, and hold it against the truth."""
    found = forecast(case.seen, case.left, case.per_round, typical=typical, draws=draws)
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


def left_out(groups: Sequence[Sequence[Case]], count: int, rng: random.Random) -> list[Judged]:
    """Judge each network with the constants that fit the others best."""
    drawn = [draw(rng) for _ in range(count)]
    scores = [[score(group, typical) for group in groups] for typical in drawn]
    judged = list[Judged]()
    for place, group in enumerate(groups):
        judged += [judge(case, drawn[best_for_others(scores, place)]) for case in group]
    totals = [statistics.fmean(row) for row in scores]
    best, shipped = totals.index(min(totals)), statistics.fmean(score(group, TYPICAL) for group in groups)
    print(f"score of the best constants for all: {totals[best]:.3f}, of autotune's: {shipped:.3f}; {drawn[best]}")
    return judged


def best_for_others(scores: Sequence[Sequence[float]], place: int) -> int:
    """Return which set of constants has the best mean score without that of one network.

    Args:
        scores: The score of each network, for each set of constants.
        place: The network that is left out.
    """
    means = [statistics.fmean((*row[:place], *row[place + 1 :])) for row in scores]
    return means.index(min(means))


def score(group: Sequence[Case], typical: Typical) -> float:
    return statistics.fmean(judge(case, typical, FIT_DRAWS).score for case in group)


def draw(rng: random.Random) -> Typical:
    """A set of constants."""
    return Typical(*(low * (high / low) ** rng.random() for low, high in RANGES))


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
    parser.add_argument("--leave-out", type=int, default=0, metavar="N", help="fit the constants to the other networks")
    parser.add_argument("--samples", type=int, default=0, help="random models made of the tasks of all jobs")
    parser.add_argument("--tasks", type=int, default=8, help="tasks of such a model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    found = [
        job_of(workspace, paths) for workspace in map(Workspace, options.workspaces) for paths in workspace.job_list()
    ]
    jobs = [job for job in found if job.tasks]
    if not jobs:
        print("judge_forecast: no job has trials", file=sys.stderr)
        return 1
    rng = random.Random(options.seed)
    show([judge(case) for job in jobs for case in cases(job)], f"{len(jobs)} jobs")
    if options.leave_out:
        groups = [[case for job in group for case in cases(job)] for group in networks(jobs)]
        groups = [group for group in groups if group]
        show(left_out(groups, options.leave_out, rng), f"each of {len(groups)} networks with constants of the others")
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
