"""Measure: time the built candidates on the target device, alone, and log every one of them."""

from __future__ import annotations

import os
import shutil
import statistics
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.processes.isolate import ItemResult, ResultKind, isolated
from autotune.stages import reference, simulated
from autotune.stages.progress import Progress, followed, shut_out
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, Failure, Trial

_RETRIED: tuple[ResultKind, ...] = ("crash", "timeout", "memory", "wrong")


def run(stage: Stage) -> dict[str, Any]:
    """Append a trial for every candidate to the tuning log, one by one, then publish the train stage.

    One that would be the best of its task is checked against the unscheduled task first: a wrong one has failed.
    One that did harm goes into quarantine before its trial is written.

    A candidate that is in the log already is not measured again. When a library is missing or is not what
    was built (a crash of the machine between the two stages), the round goes back to build.

    Returns:
        `measured` and `failed`, counts of trials appended; `best_us` of the round; how many candidates were
        `verified` and the seconds of `verification`.
    """
    folder = stage.paths.artifacts_of(stage.file.task, stage.file.round)
    known = {trial.hash: trial for trial in stage.log().trials()}
    waiting = [candidate for candidate in stage.file.candidates if candidate.hash not in known]
    if any(candidate.failure is None and not _intact(candidate, folder) for candidate in waiting):
        stage.advance("build", stage.file.candidates)
        return {"measured": 0, "failed": 0, "rebuild": True}
    checks: list[float] = []
    with followed(stage) as progress:
        waiting = shut_out(stage, progress, waiting)
        times = [trial.median_us for trial in known.values() if trial.median_us]
        trials = _measure(stage, progress, folder, waiting, times, checks)
    stage.advance("train")
    shutil.rmtree(folder, ignore_errors=True)
    timed = [trial.median_us for trial in trials if trial.median_us is not None]
    counts = {"measured": len(timed), "failed": len(trials) - len(timed), "best_us": min(timed, default=None)}
    return {**counts, "verified": len(checks), "verification": round(sum(checks), 3)}


def _intact(candidate: Candidate, folder: Path) -> bool:
    path = folder / candidate.library
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return len(data) == candidate.size and zlib.crc32(data) == candidate.crc32


def _measure(
    stage: Stage,
    progress: Progress,
    folder: Path,
    waiting: list[Candidate],
    times: list[float],
    checks: list[float],
) -> list[Trial]:
    """The trials that were logged. `times` and `checks`, medians and seconds of verification, are added to."""
    trials = _log(stage, [_trial(stage, item, (), item.failure) for item in waiting if item.failure is not None])
    truth, _ = reference.ensure(stage)
    libraries = [candidate for candidate in waiting if candidate.failure is None]
    runs = isolated(
        libraries,
        lambda: _timer(stage, progress, folder, min(times, default=None), truth),
        limit_s=stage.config.measure.timeout_s,
        retried=_RETRIED,
    )
    for candidate, outcome in runs:
        trial = _outcome_trial(stage, candidate, outcome)
        times += [trial.median_us] if trial.median_us else []
        checks += [outcome.value["checked"]] if trial.median_us and outcome.value["checked"] else []
        trials += _log(stage, [trial])
    return trials


def _timer(
    stage: Stage, progress: Progress, folder: Path, best_us: float | None, truth: Any
) -> Callable[[Candidate], dict[str, Any]]:
    if stage.simulated:
        times_of = simulated.timer(stage)
        return lambda candidate: {"times": times_of(candidate), "checked": 0.0}
    from autotune.tvm_backend.kernels.run import Runner, Timing, open_device
    from autotune.tvm_backend.kernels.verify import Verifier

    measure = stage.config.measure
    _configure_threads(stage)
    device = open_device(stage.spec.target_kind, _index(stage.device))
    runner = Runner(device, Timing(measure.warmup, measure.repeats, measure.min_repeat_ms))
    verifier = None if truth is None or truth.problem else Verifier(truth, device)
    best = best_us

    def timed(candidate: Candidate) -> dict[str, Any]:
        """The times and, of a candidate that is better than all before it, how long it took to check it."""
        nonlocal best
        progress.begin(candidate)
        times = runner.time(folder / candidate.library, candidate.args, best)
        middle, checked = statistics.median(times), 0.0
        if best is None or middle < best:
            checked = _verify(verifier, folder / candidate.library)
            best = middle
        return {"times": times, "checked": checked}

    return timed


def _verify(verifier: Any, library: Path) -> float:
    """Check a kernel; returns the seconds that it took."""
    if verifier is None:
        return 0.0
    started = time.perf_counter()
    verifier.check_library(library)
    return time.perf_counter() - started


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


def _outcome_trial(stage: Stage, candidate: Candidate, outcome: ItemResult) -> Trial:
    if outcome.kind == "ok":
        return _trial(stage, candidate, tuple(round(value, 4) for value in outcome.value["times"]), None)
    return _trial(stage, candidate, (), Failure("measure", outcome.kind, outcome.reason))


def _log(stage: Stage, trials: list[Trial]) -> list[Trial]:
    """Log trials, and shut out the harmful ones first: killed in between, they are not run again."""
    failed = [(trial, trial.failure) for trial in trials if trial.failure is not None]
    stage.quarantine().add([stage.quarantined(trial.hash, failure, trial.at) for trial, failure in failed])
    return stage.log().add(trials)


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
