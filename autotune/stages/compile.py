"""Compile: make a library of the whole model with the best schedules so far, once all tasks of a job have times.

`confirm` then times it. It is done again when the tasks have become faster, and with `--stop-at` also whenever they
promise that the model is fast enough. It takes a CPU for up to a minute, while the device measures candidates.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.config import Config
from autotune.devices import kind_of
from autotune.errors import DamagedFile, StorageError
from autotune.planning.latency import tasks_sum_ms
from autotune.stages.stage import Stage
from autotune.storage.atomic import publish_json, read_json
from autotune.storage.confirmation import Confirmation, read_confirmation
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import read_stage
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.seals import LIBRARY, file_digest, is_sealed, seal
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.export import ready_library

# Times of the whole model differ by 1% from process to process. A promise is that much better than what is wanted.
_MARGIN = 0.99
# A confirmation is old after this time, and after so many times what it took: confirming takes a ninth of the time.
_OLD_S = 30.0
_OLD_TIMES = 8
# What a model takes besides its tasks is measured again when they take this share of what they took, and in the end, so
# that what is said last is what an export will find.
_FASTER = 0.8
_FASTER_IN_THE_END = 0.98
_META = ("autotune-model", 3)
_LIBRARY = "model.so"
_NOTE = "model.json"

Logs = Callable[[int], TuningLog]  # the log of each task of a job, by its index


def run(stage: Stage) -> dict[str, Any]:
    """Compile the model and publish the confirmation, or end the round if that is not due any more.

    If its time is known well enough, the library is only made ready for an export.

    Returns:
        `compiled`, whether there is a library that waits to be timed; or `ready` where one was made for an export.

    Raises:
        DamagedFile: The job's copy of the model is not what was submitted.
        DiskProblem: The library could not be written.
    """
    sums = _tasks_ms(stage.spec, stage.log)
    if sums is None or not _is_worth_timing(stage):
        made = _make_ready(stage) if _lacks_library(stage) else {}
        stage.end_round()
        return {"compiled": False, **made}
    stage.clear_artifacts()
    publish_json(stage.artifacts / _NOTE, *_META, _compile(stage, sums))
    stage.advance("confirm")
    return {"compiled": True}


def _compile(stage: Stage, tasks_ms: list[float]) -> dict[str, Any]:
    """Compile the model, and return what `compiled` wants to know of the library."""
    began = time.monotonic()
    library = stage.artifacts / _LIBRARY
    stage.bench.compile_model(library)
    mark = seal(LIBRARY, file_digest(library))
    return {"seal": mark, "tasks_ms": tasks_ms, "took_s": round(time.monotonic() - began, 3), "at": time.time()}


def _make_ready(stage: Stage) -> dict[str, Any]:
    stage.clear_artifacts()
    library = stage.artifacts / _LIBRARY
    stage.bench.compile_model(library)
    ready_library.keep(stage.paths, library)
    return {"ready": True}


@dataclass(frozen=True)
class CompiledModel:
    """A library of the whole model.

    Attributes:
        library: The file.
        tasks_ms: The sum of the best times of the job's tasks when it was compiled, at each set of shapes.
        took_s: How long that took, in seconds.
        at: When it ended.
    """

    library: Path
    tasks_ms: tuple[float, ...]
    took_s: float
    at: float


def compiled(stage: Stage) -> CompiledModel | None:
    """Return what this round has compiled; None where it is not there any more, or another user has made it."""
    library = stage.artifacts / _LIBRARY
    try:
        note = read_json(stage.artifacts / _NOTE, *_META)
        if not is_sealed(LIBRARY, file_digest(library), note["seal"]):
            return None
        tasks_ms = tuple(map(float, note["tasks_ms"]))
        return CompiledModel(library, tasks_ms, float(note["took_s"]), float(note["at"]))
    except (OSError, StorageError, KeyError, TypeError, ValueError, AttributeError):
        return None


def is_due(stage: Stage) -> bool:
    """Return whether a job's whole model is worth a measurement now, or an export would have to compile it.

    Raises:
        StorageError: A log or the last confirmation cannot be read.
    """
    return _is_worth_timing(stage) or _lacks_library(stage)


def _lacks_library(stage: Stage) -> bool:
    """Return whether the trials of a job have been made, and there is no library of the best of them."""
    config = stage.config
    if not (_can_be_timed(stage.paths, stage.spec, config) and kind_of(stage.spec).is_local_cpu):
        return False
    if not config.export.kept_bytes or not _is_over(stage.spec, stage.log) or _is_under_way(stage):
        return False
    return ready_library.find(stage.workspace, stage.paths, stage.spec) is None


def _is_worth_timing(stage: Stage) -> bool:
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
    if not _can_be_timed(paths, spec, config):
        return False
    last = read_confirmation(paths)
    sums = _tasks_ms(spec, log)
    if sums is None or last is None or not last.entries:
        return sums is not None
    share = max(sums) / last.estimate_ms
    return share <= _FASTER_IN_THE_END and (_is_over(spec, log) or (share <= _FASTER and _is_old(last)))


def _can_be_timed(paths: JobPaths, spec: JobSpec, config: Config) -> bool:
    """Return whether the whole model of a job is timed here, as far as is known."""
    if not config.job.whole_model or config.cluster.engine or not kind_of(spec).runs_models:
        return False
    last = read_confirmation(paths)
    return last is None or not last.failed


def _is_under_way(stage: Stage) -> bool:
    """Return whether another round of the job is about to be confirmed: of two that compile, the first one goes on."""
    own = stage.paths.stage(stage.file.task, stage.file.round)
    for path in set(stage.paths.stage_files()) - {own}:
        with contextlib.suppress(FileNotFoundError, DamagedFile):  # it has ended since, or begins again
            kind = read_stage(stage.paths, path, stage.spec).kind
            if kind == "confirm" or (kind == "compile" and (stage.file.kind != "compile" or path < own)):
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
    used = [index for index, task in enumerate(spec.tasks) if task.is_tuned]
    best_us = [_best_us(log(index)) for index in used]
    if not best_us or None in best_us:
        return None
    weights = [[entry.weights[index] for index in used] for entry in spec.all_entries]
    return [tasks_sum_ms(best_us, of_entry) or 0.0 for of_entry in weights]


def _best_us(log: TuningLog) -> float | None:
    return min((entry.median_us for entry in log.entries() if entry.median_us is not None), default=None)
