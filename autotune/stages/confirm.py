"""Confirm: once the tasks of a job have times, compile the whole model and time it, beside the model as submitted.

So `status` can say how long the model takes, and not only its tasks. With `--stop-at` it is confirmed, too, whenever
the tasks promise that the model is fast enough.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autotune.config import Config
from autotune.devices import kind_of
from autotune.errors import DamagedFile
from autotune.planning.latency import tasks_sum_ms
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation, EntryTimes, read_confirmation
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import read_stage
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

# Times of the whole model differ by 1% from process to process. A promise is that much better than what is wanted.
_MARGIN = 0.99
# A confirmation is old after this time, and after so many times what it took: confirming takes a ninth of the time.
_OLD_S = 30.0
_OLD_TIMES = 8
# What a model takes besides its tasks is measured again when they take this share of what they took, and in the end, so
# that what is said last is what an export will find.
_FASTER = 0.8
_FASTER_IN_THE_END = 0.98
# In how many processes the library is timed: to tell how long it takes, and to end a job.
_PROCESSES = 3
_PROCESSES_TO_STOP = 5

Logs = Callable[[int], TuningLog]  # the log of each task of a job, by its index


def run(stage: Stage) -> dict[str, Any]:
    """Write down how long the whole model takes, then end the round.

    If another round's confirmation has said so meanwhile, none is made.

    Returns:
        `latency_ms` and `slowest_ms` of the processes that timed the library; `estimate_ms`, the sum of the tasks' best
        times; and with `--stop-at`, `met`. Without a confirmation, `skipped`.

    Raises:
        WorkerError: The library cannot be run.
    """
    stop_at_ms = stage.spec.stop_at_ms
    sums = _tasks_ms(stage.spec, stage.log)
    if sums is None or not is_due(stage):
        stage.end_round()
        return {"skipped": True}
    began = time.monotonic()
    last = read_confirmation(stage.paths)
    compared = last is not None and any(entry.reference for entry in last.entries)
    processes = _PROCESSES if stop_at_ms is None else _PROCESSES_TO_STOP
    entries = stage.bench.time_model(sums, processes, reference=not compared)
    if compared and last is not None:
        entries = [_with_reference(entry, last) for entry in entries]
    result = Confirmation.of(entries, time.monotonic() - began)
    formats.write(stage.paths.confirmed, result)
    stage.end_round()
    figures = {"latency_ms": result.latency_ms, "slowest_ms": result.slowest_ms, "estimate_ms": result.estimate_ms}
    return figures if stop_at_ms is None else {**figures, "met": result.meets(stop_at_ms)}


def _with_reference(entry: EntryTimes, last: Confirmation) -> EntryTimes:
    """Return the times of an entry with those of the reference that were taken before: it does not change."""
    before = next((times for times in last.entries if times.name == entry.name), entry)
    return replace(entry, reference=before.reference, reference_ms=before.reference_ms)


def is_due(stage: Stage) -> bool:
    """Return whether a job's whole model is worth a measurement now.

    Raises:
        StorageError: A log or the last confirmation cannot be read.
    """
    return _promises(stage.paths, stage.spec, stage.log) or (
        _tells_more(stage.paths, stage.spec, stage.config, stage.log) and not _is_under_way(stage)
    )


def is_due_at_once(workspace: Workspace, paths: JobPaths, spec: JobSpec, config: Config) -> bool:
    """Return whether the whole model of a job that is new is worth a measurement, because all its tasks have times.

    Raises:
        StorageError: A log cannot be read.
    """

    def log(index: int) -> TuningLog:
        return TuningLog(workspace.tuning_log(spec.target_key, spec.tasks[index].hash).records)

    return _promises(paths, spec, log) or _tells_more(paths, spec, config, log)


def _tells_more(paths: JobPaths, spec: JobSpec, config: Config, log: Logs) -> bool:
    """Return whether a measurement would tell what the model takes besides its tasks better than the last one did."""
    if not config.job.whole_model or config.cluster.engine or not kind_of(spec).runs_models:
        return False
    last = read_confirmation(paths)
    if last is not None and last.failed:
        return False
    sums = _tasks_ms(spec, log)
    if sums is None or last is None or not last.entries:
        return sums is not None
    share = max(sums) / last.estimate_ms
    return share <= _FASTER_IN_THE_END and (_is_over(spec, log) or (share <= _FASTER and _is_old(last)))


def _is_under_way(stage: Stage) -> bool:
    """Return whether another round of the job is about to be confirmed."""
    own = stage.paths.stage(stage.file.task, stage.file.round)
    for path in stage.paths.stage_files():
        with contextlib.suppress(FileNotFoundError, DamagedFile):  # it has ended since, or begins again
            if path != own and read_stage(stage.paths, path, stage.spec).kind == "confirm":
                return True
    return False


def _is_over(spec: JobSpec, log: Logs) -> bool:
    """Return whether the trials of the job's budget have been made, so that no later round will ask."""
    before = spec.known_at_submit if spec.fresh else (0,) * len(spec.tasks)
    return sum(len(log(task).entries()) - before[task] for task in spec.tunable) >= spec.trials


def _promises(paths: JobPaths, spec: JobSpec, log: Logs) -> bool:
    """Return whether a job with `--stop-at` is expected to be fast enough now, and that is worth a measurement.

    It is not if it was found to be so, or the whole model could not be timed. What the last confirmation found is
    doubted after a while: the machine may have been slow then.
    """
    if spec.stop_at_ms is None:
        return False
    last = read_confirmation(paths)
    if last is not None and (last.failed or last.meets(spec.stop_at_ms)):
        return False
    sums = _tasks_ms(spec, log)
    ratio = last.ratio if last is not None and not _is_old(last) else 1.0
    return sums is not None and max(sums) * ratio <= spec.stop_at_ms * _MARGIN


def _is_old(last: Confirmation) -> bool:
    return time.time() - last.at > max(_OLD_S, _OLD_TIMES * last.took_s)


def _tasks_ms(spec: JobSpec, log: Logs) -> list[float] | None:
    """Return the sum of the best times of a job's tasks at each set of shapes; None while a task has none.

    Raises:
        StorageError: A log cannot be read.
    """
    used = [index for index in spec.tunable if spec.tasks[index].weight or not spec.explore]
    best_us = [_best_us(log(index)) for index in used]
    if not best_us or None in best_us:
        return None
    weights = [[entry.weights[index] for index in used] for entry in spec.all_entries]
    return [tasks_sum_ms(best_us, of_entry) or 0.0 for of_entry in weights]


def _best_us(log: TuningLog) -> float | None:
    return min((entry.median_us for entry in log.entries() if entry.median_us is not None), default=None)
