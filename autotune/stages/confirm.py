"""Confirm: compile the whole model with the best schedules and time it, since it promises to be fast enough."""

from __future__ import annotations

import time
from typing import Any

from autotune.stages import level, simulated
from autotune.stages.measure import configure_threads
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation


def run(stage: Stage) -> dict[str, Any]:
    """Write down how long the whole model takes, then end the round.

    If another round's confirmation has corrected the estimate meanwhile, so that it promises nothing, none is made.

    Returns:
        `latency_ms` and `slowest_ms` of the processes that timed the library; `estimate_ms`, the sum of the tasks' best
        times; and `met`. Without a confirmation, `skipped`.

    Raises:
        WorkerError: The library cannot be run.
    """
    limit_ms, estimate = stage.spec.stop_at_ms, level.known_ms(stage.workspace, stage.spec)
    if limit_ms is None or estimate is None or not level.is_promised(stage.workspace, stage.paths, stage.spec):
        stage.end_round()
        return {"skipped": True}
    began = time.monotonic()
    times = simulated.whole_model_ms(stage, estimate) if stage.simulated else _time_library(stage)
    took_s = round(time.monotonic() - began, 3)
    found = Confirmation(tuple(round(value, 4) for value in times), round(estimate, 4), time.time(), took_s=took_s)
    formats.write(stage.paths.confirmed, found)
    stage.end_round()
    figures = {"latency_ms": found.latency_ms, "slowest_ms": found.slowest_ms, "estimate_ms": found.estimate_ms}
    return {**figures, "met": found.meets(limit_ms)}


def _time_library(stage: Stage) -> list[float]:
    """Return the median of the timings of each of some fresh processes, in milliseconds."""
    from autotune.tvm_backend.export.timing.whole_model import time_library

    configure_threads(stage)
    if stage.gpu is not None:
        stage.gpu.take()
    threads, graph = stage.config.measure.threads or len(stage.cpus), stage.config.export.cuda_graph
    return time_library(stage.workspace, stage.paths, stage.spec, threads, cuda_graph=graph)
