"""Measure: time the built candidates on the target device, alone, and log every one of them."""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.isolate import Outcome, isolated
from autotune.stages import simulated
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, Failure, Trial


def run(stage: Stage) -> dict[str, Any]:
    """Append a trial for every candidate to the tuning log, one by one, then publish the train stage.

    A candidate that is in the log already is not measured again. When a library is missing or is not what
    was built (a crash of the machine between the two stages), the round goes back to build.

    Returns:
        `measured` and `failed`, counts of trials appended; `best_us` of the round.
    """
    folder = stage.paths.artifacts_of(stage.file.task, stage.file.round)
    known = {trial.hash: trial for trial in stage.log().trials()}
    waiting = [candidate for candidate in stage.file.candidates if candidate.hash not in known]
    if any(candidate.failure is None and not _intact(candidate, folder) for candidate in waiting):
        stage.advance("build", stage.file.candidates)
        return {"measured": 0, "failed": 0, "rebuild": True}
    trials = _measure(stage, folder, waiting, [trial.best_us for trial in known.values() if trial.best_us])
    stage.advance("train")
    shutil.rmtree(folder, ignore_errors=True)
    timed = [trial.best_us for trial in trials if trial.best_us is not None]
    return {"measured": len(timed), "failed": len(trials) - len(timed), "best_us": min(timed, default=None)}


def _intact(candidate: Candidate, folder: Path) -> bool:
    path = folder / candidate.library
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return len(data) == candidate.size and zlib.crc32(data) == candidate.crc32


def _measure(stage: Stage, folder: Path, waiting: list[Candidate], times: list[float]) -> list[Trial]:
    broken = [candidate for candidate in waiting if candidate.failure is not None]
    trials = stage.log().add(_trial(stage, item, (), item.failure) for item in broken)
    best = min(times, default=None)
    libraries = [candidate for candidate in waiting if candidate.failure is None]
    runs = isolated(libraries, lambda: _timer(stage, folder, best), limit_s=stage.config.measure.timeout_s)
    for candidate, outcome in runs:
        trials += stage.log().add([_outcome_trial(stage, candidate, outcome)])
    return trials


def _timer(stage: Stage, folder: Path, best_us: float | None) -> Callable[[Candidate], list[float]]:
    if stage.simulated:
        return simulated.timer(stage)
    from autotune.tvm_backend.run import Runner, Timing, open_device

    measure = stage.config.measure
    _configure_threads(stage)
    device = open_device(stage.spec.target_kind, _index(stage.device))
    runner = Runner(device, Timing(measure.warmup, measure.repeats, measure.min_repeat_ms))
    best = best_us

    def timed(candidate: Candidate) -> list[float]:
        nonlocal best
        times = runner.time(folder / candidate.library, candidate.args, best)
        best = min(times) if best is None else min(best, *times)
        return times

    return timed


def _index(device: str) -> int:
    """The number in a device's name: 1 for `cuda:1`."""
    return int(device.partition(":")[2] or 0)


def _configure_threads(stage: Stage) -> None:
    """TVM's runtime reads these when its thread pool starts; by default it would use half of the CPUs.

    Its own binding of threads to cores counts cores from zero, so it is only right on a whole machine.
    """
    os.environ["TVM_NUM_THREADS"] = str(stage.config.measure.threads or len(stage.cpus))
    if len(stage.cpus) != os.cpu_count():
        os.environ["TVM_BIND_THREADS"] = "0"


def _outcome_trial(stage: Stage, candidate: Candidate, outcome: Outcome) -> Trial:
    if outcome.kind == "ok":
        return _trial(stage, candidate, tuple(round(value, 4) for value in outcome.value), None)
    return _trial(stage, candidate, (), Failure("measure", outcome.kind, outcome.reason))


def _trial(stage: Stage, candidate: Candidate, times: tuple[float, ...], failure: Failure | None) -> Trial:
    return Trial(
        hash=candidate.hash,
        trace=candidate.trace,
        args=candidate.args,
        times_us=times,
        failure=failure,
        job=stage.paths.folder.name,
        round=stage.file.round,
        at=time.time(),
    )
