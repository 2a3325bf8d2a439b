"""Confirm: time the whole model that `compile` has made, beside the model as submitted.

So `status` can say how long the model takes, and not only its tasks; and with `--stop-at` the job ends. The library is
kept for an export.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from autotune.stages.compile import CompiledModel, compiled, is_due
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation, EntryTimes, read_confirmation
from autotune.tvm_backend.export import ready_library

# In how many processes the library is timed: to tell how long it takes, and to end a job.
_PROCESSES = 3
_PROCESSES_TO_STOP = 5


def run(stage: Stage) -> dict[str, Any]:
    """Write down how long the whole model takes, then end the round, or compile again if its tasks are faster now.

    If another round's confirmation has been made since the library was compiled, none is made.

    Returns:
        `latency_ms` and `slowest_ms` of the processes that timed the library; `estimate_ms`, the sum of the tasks' best
        times; and with `--stop-at`, `met`. Without a library, `recompile`; without a confirmation, `skipped`.

    Raises:
        StorageError: A file of the job cannot be read or written.
        WorkerError: The library cannot be run.
    """
    model = compiled(stage)
    if model is None:
        stage.advance("compile")
        return {"recompile": True}
    last = read_confirmation(stage.paths)
    if last is not None and last.at > model.at:
        stage.end_round()
        return {"skipped": True}
    result = _confirmation(stage, model, last)
    formats.write(stage.paths.confirmed, result)
    ready_library.keep(stage.paths, model.library)
    if is_due(stage):  # for what was measured meanwhile, of which nobody else reminds it after the last round
        stage.advance("compile")
    else:
        stage.end_round()
    return _figures(stage, result)


def _confirmation(stage: Stage, model: CompiledModel, last: Confirmation | None) -> Confirmation:
    began = time.monotonic()
    compared = last is not None and any(entry.reference for entry in last.entries)
    processes = _PROCESSES if stage.spec.stop_at_ms is None else _PROCESSES_TO_STOP
    entries = stage.bench.time_model(model.library, model.tasks_ms, processes, reference=not compared)
    if compared and last is not None:
        entries = [_with_reference(entry, last) for entry in entries]
    return Confirmation.of(entries, model.took_s + time.monotonic() - began)


def _figures(stage: Stage, result: Confirmation) -> dict[str, Any]:
    figures = {"latency_ms": result.latency_ms, "slowest_ms": result.slowest_ms, "estimate_ms": result.estimate_ms}
    stop_at_ms = stage.spec.stop_at_ms
    return figures if stop_at_ms is None else {**figures, "met": result.meets(stop_at_ms)}


def _with_reference(entry: EntryTimes, last: Confirmation) -> EntryTimes:
    """Return the times of an entry with those of the reference that were taken before: it does not change."""
    before = next((times for times in last.entries if times.name == entry.name), entry)
    return replace(entry, reference=before.reference, reference_ms=before.reference_ms)
