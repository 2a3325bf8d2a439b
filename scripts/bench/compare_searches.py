#!/usr/bin/env python
"""Compare how soon two searches find fast kernels: the trials of two workspaces that tuned the same models.

    python scripts/bench/compare_searches.py BEFORE AFTER [--trials 24]

Each was tuned by another checkout, or with other settings. A row says how long the best of the first trials of a task
takes, as a multiple of the best of all, in the geometric mean over the tasks that have as many trials in both. The last
column compares the two searches with each other; it is of two moments, so a machine that is now fast, now slow
disturbs it. It takes a second.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.storage.tuning_log import TuningLog

FIRST = (1, 2, 4, 8, 16, 32, 64, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspaces", nargs=2, type=Path, metavar="WORKSPACE")
    parser.add_argument("--trials", type=int, default=24, help="that a task has to have in both (default: 24)")
    options = parser.parse_args()
    before, after = (times_of(folder, options.trials) for folder in options.workspaces)
    pairs = [(before[task], after[task]) for task in sorted(before.keys() & after.keys())]
    if not pairs:
        sys.exit(f"no task has {options.trials} trials in both {' and '.join(map(str, options.workspaces))}")
    print(f"{len(pairs)} tasks with {options.trials} trials\n")
    print("| trials | before | after | after / before |\n| --- | --- | --- | --- |")
    for count in sorted({count for count in FIRST if count < options.trials} | {options.trials}):
        ends = (
            statistics.geometric_mean(slowdown(times, count) for times in side) for side in zip(*pairs, strict=True)
        )
        ratio = statistics.geometric_mean(min(new[:count]) / min(old[:count]) for old, new in pairs)
        print(f"| {count} | {' | '.join(f'{end:.2f}' for end in ends)} | {ratio:.2f} |")


def times_of(folder: Path, trials: int) -> dict[str, list[float]]:
    """Return the times of the first trials that did not fail, by task, of those that have enough."""
    logs = sorted((folder / "logs" / "tuning").glob("*/*.jsonl"))
    times = {f"{log.parent.name}/{log.stem}": measured(log)[:trials] for log in logs}
    return {task: first for task, first in times.items() if len(first) == trials}


def measured(log: Path) -> list[float]:
    return [entry.median_us for entry in TuningLog(log).entries() if entry.median_us]


def slowdown(times: Sequence[float], count: int) -> float:
    return min(times[:count]) / min(times)


if __name__ == "__main__":
    main()
