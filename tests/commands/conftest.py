"""A job whose tuning logs, journal and export are on disk, as after a real run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from autotune.commands import references
from autotune.reasons import Reason
from autotune.storage.formats import Failure, JobState, TaskProgress, Trial
from autotune.storage.journal import StageDone, StageFailed, append
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

BEGIN = 1_700_000_000.0
EXPORT = {
    "latency": {"tuned_ms": 2.0, "untuned_ms": 40.0, "onnxruntime_ms": 2.5, "spread": [1.0]},
    "threads": 2,
    "exported_at": BEGIN + 500,
    "roofline": {"gflops": 160.0, "gb_per_s": 40.0, "ring_bytes": 10**6},
    "kernels": [
        {"name": f"fused_conv{index}", "task": f"conv{index}", "calls": index + 1, "us": 900.0, "gflop": 0.5,
         "bytes": 10**6, "streamed": 10**5, "least_us": 100.0, "bound": bound}
        for index, bound in enumerate(("arithmetic", "bandwidth"))
    ],
}  # fmt: skip


def trial(task: int, number: int, us: float | None, at: float, tile: int = 4, job: str = "0001-net") -> Trial:
    """A trial whose trace has one tile, one category and one place to compute."""
    trace: Any = [
        [
            ["GetSBlock", [], ["conv2d", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l1", "l2"]],
            ["SamplePerfectTile", ["l2"], [2, 64], ["v3", "v4"]],
            ["SampleCategorical", [], [[0, 16, 64], [0.3, 0.3, 0.4]], ["v5"]],
        ],
        [[2, [64 // tile, tile]], [3, number % 3]],
    ]
    failure = Failure("build", "timeout", "killed after 20 s") if us is None else None
    times = () if us is None else (us * 0.99, us, us * 1.01)
    return Trial(f"{task:03}{number:05}", trace, [], times, failure, job, number // 8, at)


@pytest.fixture
def make_trial() -> Callable[..., Trial]:
    """Makes a trial of a task: its number, its time or None for a failure, when, and its tile."""
    return trial


@pytest.fixture
def tuned(workspace: Workspace, make_job: Callable[..., JobPaths]) -> JobPaths:
    """A job of two tasks with 24 trials each: the second weighs 2, and every eighth trial of it failed."""
    done = (TaskProgress(24, 500.0), TaskProgress(24, 250.0))
    state = JobState("done", Reason("budget-used"), 48, done, BEGIN + 200)
    paths = make_job(trials=48, state=state)
    with patch("os.fsync"):
        _log(workspace)
        _journal(paths)
        references.remember(paths, EXPORT)
    return paths


def _log(workspace: Workspace) -> None:
    # The time depends on the tile alone: 4 is four times as fast as 1.
    tiles = [1, 2, 1, 4, 2, 1, 4, 2] * 3
    for task, scale in ((0, 2000.0), (1, 1000.0)):
        trials = [trial(task, n, scale / tile, BEGIN + 2 * n + task, tile) for n, tile in enumerate(tiles)]
        if task == 1:
            trials = [replace(trial(1, n, None, logged.at), hash=logged.hash) if n % 8 == 7 else logged
                     for n, logged in enumerate(trials)]  # fmt: skip
        TuningLog(workspace.tuning_log("llvm-test", f"{task:016x}").records).add(trials)


def _journal(paths: JobPaths) -> None:
    for round in range(3):
        at = BEGIN + 10 * round
        append(paths.journal, StageDone(kind="search", round=round, began=at, at=at + 2, seconds=2.0, cpus=(0,)))
        append(paths.journal, StageDone(kind="build", round=round, began=at + 2, at=at + 6, seconds=4.0, cpus=(0, 1)))
    failed = StageFailed(kind="measure", began=BEGIN + 30, at=BEGIN + 31, seconds=1.0, cpus=(0, 1), device="cpu")
    append(paths.journal, failed)
