"""Measure: time the built candidates on the target device, alone, and log every one of them."""

from __future__ import annotations

import os
import shutil
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.machine.disturbance import Quiet
from autotune.processes.isolate import ItemResult, ResultKind, isolated
from autotune.stages import reference, simulated
from autotune.stages.guard import Guard, Guarded, load_quiet
from autotune.stages.progress import Progress, followed, shut_out
from autotune.stages.session import Session
from autotune.stages.stage import Stage, check_machine
from autotune.storage.formats import Candidate, Failure, Trial

_RETRIED: tuple[ResultKind, ...] = ("crash", "timeout", "memory", "wrong")
_SUSPECT: tuple[ResultKind, ...] = ("error", "crash", "timeout")  # the machine may be to blame
_SUSPECT_ON_GPU: tuple[ResultKind, ...] = (*_SUSPECT, "memory")  # others use its memory, too


def run(stage: Stage) -> dict[str, Any]:
    """Append a trial for every candidate to the tuning log, one by one, then publish the train stage.

    One that would be the best of its task is checked against the unscheduled task first: a wrong one has failed.
    One that did harm goes into quarantine before its trial is written.

    A candidate that is in the log already is not measured again. When a library is missing or is not what
    was built (a crash of the machine between the two stages), the round goes back to build.

    Raises:
        MachineProblem: not even a kernel that is known to be good runs here; no candidate is blamed for that.

    Returns:
        `measured` and `failed`, counts of trials appended; `best_us` of the round; how many candidates were
        `verified` and the seconds of `verification`; where other work disturbed measurements, how often they were made
        `again`, how many trials are marked as `disturbed`, and why the machine is `busy`.
    """
    folder = stage.paths.artifacts_of(stage.file.task, stage.file.round)
    known = {trial.hash: trial for trial in stage.log().trials()}
    waiting = [candidate for candidate in stage.file.candidates if candidate.hash not in known]
    if any(candidate.failure is None and not _intact(candidate, folder) for candidate in waiting):
        stage.advance("build", stage.file.candidates)
        return {"measured": 0, "failed": 0, "rebuild": True}
    session = Session([trial.median_us for trial in known.values() if trial.median_us], load_quiet(stage.workspace))
    with followed(stage) as progress:
        trials = _measure(stage, progress, folder, shut_out(stage, progress, waiting), session)
    session.save(stage)
    stage.advance("train")
    shutil.rmtree(folder, ignore_errors=True)
    timed = [trial.median_us for trial in trials if trial.median_us is not None]
    counts = {"measured": len(timed), "failed": len(trials) - len(timed), "best_us": min(timed, default=None)}
    return {**counts, **session.summary([trial for trial in trials if trial.disturbed])}


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
    session: Session,
) -> list[Trial]:
    """The trials that were logged."""
    trials = _log(stage, [_trial(stage, item, (), item.failure) for item in waiting if item.failure is not None])
    truth, _ = reference.ensure(stage)
    libraries = [candidate for candidate in waiting if candidate.failure is None]
    runs = isolated(
        libraries,
        lambda: _timer(stage, progress, folder, session, truth),
        limit_s=stage.config.measure.timeout_s,
        retried=_RETRIED,
    )
    trusted = False
    for candidate, outcome in runs:
        if outcome.kind in (_SUSPECT if stage.gpu is None else _SUSPECT_ON_GPU) and not trusted:
            check_machine(stage)  # before a candidate is blamed for good
            trusted = stage.gpu is None  # a GPU may be lost at any time
        trial = _outcome_trial(stage, candidate, outcome)
        if outcome.kind == "ok":
            session.take(outcome.value)
        trials += _log(stage, [trial])
    return trials


def _timer(
    stage: Stage, progress: Progress, folder: Path, session: Session, truth: Any
) -> Callable[[Candidate], dict[str, Any]]:
    if stage.simulated:
        times_of = simulated.timer(stage)
        return lambda candidate: _answer(Guarded(times_of(candidate)), 0.0)
    from autotune.tvm_backend.kernels.verify import Verifier

    _configure_threads(stage)
    runner = _runner(stage)
    verifier = None if truth is None or truth.problem else Verifier(truth, runner.device)
    guard = _guard(stage, session.quiet)
    best = min(session.times, default=None)

    def timed(candidate: Candidate) -> dict[str, Any]:
        """The times and, of a candidate that is better than all before it, how long it took to check it."""
        nonlocal best
        progress.begin(candidate)
        library, goal = folder / candidate.library, best

        def once() -> list[float]:
            times: list[float] = runner.time(library, candidate.args, goal)
            return times

        found = guard.measure(once) if guard else Guarded(once())
        middle, checked = statistics.median(found.times), 0.0
        if best is None or middle < best:
            checked = _verify(verifier, library)
            best = middle
        return _answer(found, checked)

    return timed


def _runner(stage: Stage) -> Any:
    """What times libraries on the stage's device, which this process takes if it is a GPU."""
    from autotune.tvm_backend.kernels.run import Runner, Timing, open_device

    measure = stage.config.measure
    timing = Timing(measure.warmup, measure.repeats, measure.min_repeat_ms)
    if stage.gpu is None:
        return Runner(open_device(stage.spec.target_kind), timing)
    from autotune.tvm_backend.kernels.run_gpu import GpuRunner

    stage.gpu.take()
    device = open_device(stage.spec.target_kind)
    return GpuRunner(device, timing, spin_up_ms=measure.gpu_spin_up_ms, cold=measure.gpu_cold_cache)


def _answer(found: Guarded, checked: float) -> dict[str, Any]:
    return {**asdict(found), "checked": checked}


def _guard(stage: Stage, quiet: Quiet) -> Guard | None:
    """None for a device of its own: what disturbs it does not show on the CPUs."""
    measure = stage.config.measure
    if stage.spec.target_kind != "llvm":
        return None
    return Guard(stage.cpus, quiet, measure.disturbed_again, measure.timeout_s / 2)


def _verify(verifier: Any, library: Path) -> float:
    """Check a kernel; returns the seconds that it took."""
    if verifier is None:
        return 0.0
    started = time.perf_counter()
    verifier.check_library(library)
    return time.perf_counter() - started


def _configure_threads(stage: Stage) -> None:
    """TVM's runtime reads these when its thread pool starts; by default it would use half of the CPUs.

    Its own binding of threads to cores counts cores from zero, so it is only right on a whole machine.
    """
    os.environ["TVM_NUM_THREADS"] = str(stage.config.measure.threads or len(stage.cpus))
    if len(stage.cpus) != os.cpu_count():
        os.environ["TVM_BIND_THREADS"] = "0"


def _outcome_trial(stage: Stage, candidate: Candidate, outcome: ItemResult) -> Trial:
    if outcome.kind == "ok":
        times = tuple(round(value, 4) for value in outcome.value["times"])
        return _trial(stage, candidate, times, None, outcome.value["disturbed"])
    return _trial(stage, candidate, (), Failure("measure", outcome.kind, outcome.reason))


def _log(stage: Stage, trials: list[Trial]) -> list[Trial]:
    """Log trials, and shut out the harmful ones first: killed in between, they are not run again."""
    failed = [(trial, trial.failure) for trial in trials if trial.failure is not None]
    stage.quarantine().add([stage.quarantined(trial.hash, failure, trial.at) for trial, failure in failed])
    return stage.log().add(trials)


def _trial(
    stage: Stage, candidate: Candidate, times: tuple[float, ...], failure: Failure | None, disturbed: str = ""
) -> Trial:
    return Trial(
        hash=candidate.hash,
        trace=candidate.trace,
        args=candidate.args,
        times_us=times,
        failure=failure,
        job=stage.paths.folder.name,
        round=stage.file.round,
        at=time.time(),
        disturbed=disturbed,
    )
