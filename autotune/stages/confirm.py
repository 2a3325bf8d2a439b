"""Confirm: of a job with `--stop-at` whose tasks promise it, compile the whole model and time it."""

from __future__ import annotations

import time
from typing import Any

from autotune.planning.latency import tasks_sum_ms
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation, read_confirmation
from autotune.storage.formats import JobSpec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

# Times of the whole model differ by 1% from process to process. A promise is that much better than what is wanted.
_MARGIN = 0.99
# A confirmation is old after this time, and after so many times what it took: confirming takes a ninth of the time.
_OLD_S = 30.0
_OLD_TIMES = 8


def run(stage: Stage) -> dict[str, Any]:
    """Write down how long the whole model takes, then end the round.

    If another round's confirmation has corrected the estimate meanwhile, so that it promises nothing, none is made.

    Returns:
        `latency_ms` and `slowest_ms` of the processes that timed the library; `estimate_ms`, the sum of the tasks' best
        times; and `met`. Without a confirmation, `skipped`.

    Raises:
        WorkerError: The library cannot be run.
    """
    stop_at_ms = stage.spec.stop_at_ms
    estimate = estimate_ms(stage.workspace, stage.spec)
    if stop_at_ms is None or estimate is None or not is_promised(stage.workspace, stage.paths, stage.spec):
        stage.end_round()
        return {"skipped": True}
    began = time.monotonic()
    times = stage.bench.time_model(estimate)
    took_s = round(time.monotonic() - began, 3)
    result = Confirmation(tuple(round(value, 4) for value in times), round(estimate, 4), time.time(), took_s=took_s)
    formats.write(stage.paths.confirmed, result)
    stage.end_round()
    figures = {"latency_ms": result.latency_ms, "slowest_ms": result.slowest_ms, "estimate_ms": result.estimate_ms}
    return {**figures, "met": result.meets(stop_at_ms)}


def is_promised(workspace: Workspace, paths: JobPaths, spec: JobSpec) -> bool:
    """Return whether a job with `--stop-at` is expected to be fast enough now, and that is worth a measurement.

    It is not if it was found to be so, or the whole model could not be timed. What the last confirmation found is
    doubted after a while: the machine may have been slow then.

    Raises:
        StorageError: A log or the last confirmation cannot be read.
    """
    if spec.stop_at_ms is None:
        return False
    last = read_confirmation(paths)
    if last is not None and (last.failed or last.meets(spec.stop_at_ms)):
        return False
    estimate = estimate_ms(workspace, spec)
    ratio = last.ratio if last is not None and not _is_old(last) else 1.0
    return estimate is not None and estimate * ratio <= spec.stop_at_ms * _MARGIN


def _is_old(last: Confirmation) -> bool:
    return time.time() - last.at > max(_OLD_S, _OLD_TIMES * last.took_s)


def estimate_ms(workspace: Workspace, spec: JobSpec) -> float | None:
    """Return the sum of the best times of a job's tasks, from the logs; None while a task has none.

    Of several sets of shapes it is that of the slowest.

    Raises:
        StorageError: A log cannot be read.
    """
    best_us = [_best_us(workspace, spec, spec.tasks[index].hash) for index in spec.tunable]
    if None in best_us:
        return None
    sums = [tasks_sum_ms(best_us, [entry.weights[index] for index in spec.tunable]) for entry in spec.all_entries]
    return max((total for total in sums if total is not None), default=None)


def _best_us(workspace: Workspace, spec: JobSpec, hash: str) -> float | None:
    entries = TuningLog(workspace.tuning_log(spec.target_key, hash).records).entries()
    return min((entry.median_us for entry in entries if entry.median_us is not None), default=None)
