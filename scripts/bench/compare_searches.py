#!/usr/bin/env python
"""Compare how soon two searches find fast kernels: the trials of two workspaces that tuned the same models.

    python scripts/bench/compare_searches.py BEFORE AFTER

Each was tuned by another checkout, or with other settings. A row says how long the best of the first trials of a task
takes, as a share of the best of all, in the geometric mean over the tasks that have as many trials in both. The last
column compares the two searches with each other; it is of two moments, so a machine that is now fast, now slow
disturbs it. It takes a second.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from autotune.storage.tuning_log import TuningLog

TRIALS = 24
FIRST = (1, 2, 4, 8, 16, TRIALS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspaces", nargs=2, type=Path, metavar="WORKSPACE")
    before, after = (times_of(folder) for folder in parser.parse_args().workspaces)
    pairs = [(before[task], after[task]) for task in sorted(before.keys() & after.keys())]
    print(f"{len(pairs)} tasks with {TRIALS} trials\n")
    print("| trials | before | after | after / before |\n| --- | --- | --- | --- |")
    for count in FIRST:
        ends = (
            statistics.geometric_mean(slowdown(times, count) for times in side) for side in zip(*pairs, strict=True)
        )
        ratio = statistics.geometric_mean(min(new[:count]) / min(old[:count]) for old, new in pairs)
        print(f"| {count} | {' | '.join(f'{end:.2f}' for end in ends)} | {ratio:.2f} |")


def times_of(folder: Path) -> dict[str, list[float]]:
    """Return the times of the first trials that did not fail, by task, of those that have enough."""
    logs = sorted((folder / "logs" / "tuning").glob("*/*.jsonl"))
    times = {f"{log.parent.name}/{log.stem}": measured(log) for log in logs}
    return {task: measured for task, measured in times.items() if len(measured) == TRIALS}


def measured(log: Path) -> list[float]:
    return [entry.median_us for entry in TuningLog(log).entries() if entry.median_us][:TRIALS]


def slowdown(times: Sequence[float], count: int) -> float:
    return min(times[:count]) / min(times)


if __name__ == "__main__":
    main()
