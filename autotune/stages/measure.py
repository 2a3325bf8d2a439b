"""Measure: time the built candidates on the target device, one after the other, and log every one of them."""

from __future__ import annotations

import os
import shutil
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from autotune.errors import DamagedFile
from autotune.machine.disturbance import Quiet
from autotune.machine.nvml import GpuCounters
from autotune.processes.isolate import ItemResult, ResultKind, isolated
from autotune.stages import reference, simulated
from autotune.stages.guard import GpuWatcher, Guard, Guarded, load_quiet
from autotune.stages.on_board import BoardMeasurement
from autotune.stages.progress import CandidateProgress, tracked, with_quarantine
from autotune.stages.session import Session
from autotune.stages.stage import Stage, check_machine
from autotune.storage.formats import Candidate, Failure, Trial

_RETRIED: tuple[ResultKind, ...] = ("crash", "timeout", "memory", "wrong")
_SUSPECT: tuple[ResultKind, ...] = ("error", "crash", "timeout")  # the machine may be to blame
_SUSPECT_ON_GPU: tuple[ResultKind, ...] = (*_SUSPECT, "memory")  # others use its memory, too


def run(stage: Stage) -> dict[str, Any]:
    """Append a trial for every candidate to the tuning log, one by one, then publish the train stage.

    A candidate that would be the best of its task is verified against the unscheduled task; a wrong result is a
    failure. A candidate that crashed or hung goes into quarantine before its trial is written. One that is in the log
    already is not measured again. When a library is missing or damaged, because the machine crashed between the two
    stages, the round goes back to build.

    Raises:
        MachineProblem: a kernel that is known to be good does not run here either. No candidate is blamed.
        DamagedFile: a library was lost meanwhile, because `clean` has removed the job, say. No candidate is blamed.

    Returns:
        `measured` and `failed`, counts of trials appended; `best_us` of the round; `verified`, a count of candidates,
        and `verification`, its seconds. With `rebuild` true, the round has gone back to build. Where the task cannot be
        verified also `unverified`, the reason. Where other work disturbed measurements also `again`, how often they
        were repeated; `disturbed`, the number of trials that are marked; and `busy`, the reason. Where sessions on
        boards failed also `sessions_failed`, what each of them said.
    """
    folder = stage.paths.artifacts_of(stage.file.task, stage.file.round)
    known = {entry.hash: entry.median_us for entry in stage.log().entries()}
    waiting = [candidate for candidate in stage.file.candidates if candidate.hash not in known]
    if any(candidate.failure is None and not _intact(candidate, folder) for candidate in waiting):
        stage.advance("build", stage.file.candidates)
        return {"measured": 0, "failed": 0, "rebuild": True}
    session = Session(list(filter(None, known.values())), load_quiet(stage.workspace))
    with tracked(stage) as progress:
        trials = _measure(stage, progress, folder, with_quarantine(stage, progress, waiting), session)
    session.save(stage)
    stage.advance("train")
    shutil.rmtree(folder, ignore_errors=True)
    timed = [trial.median_us for trial in trials if trial.median_us is not None]
    counts = {"measured": len(timed), "failed": len(trials) - len(timed), "best_us": min(timed, default=None)}
    return {**counts, **session.summary([trial for trial in trials if trial.disturbed])}


def _intact(candidate: Candidate, folder: Path) -> bool:
    """Return whether the library of a candidate is the one that was built."""
    path = folder / candidate.library
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return len(data) == candidate.size and zlib.crc32(data) == candidate.crc32


def _measure(
    stage: Stage,
    progress: CandidateProgress,
    folder: Path,
    waiting: list[Candidate],
    session: Session,
) -> list[Trial]:
    """Measure the waiting candidates; return the trials that were logged."""
    trials = _log(stage, [_trial(stage, item, (), item.failure) for item in waiting if item.failure is not None])
    truth, _ = reference.ensure(stage)
    session.unverified = "" if truth is None else truth.problem
    libraries = [candidate for candidate in waiting if candidate.failure is None]
    if stage.board is not None:
        on_board = BoardMeasurement(stage, stage.board, lambda it: _timer(stage, progress, folder, session, truth, it))
        runs, session.failures = on_board.results(libraries), on_board.failures
    else:
        runs = isolated(
            libraries,
            lambda: _timer(stage, progress, folder, session, truth, _runner(stage)),
            limit_s=stage.config.measure.timeout_s,
            retried=_RETRIED,
        )
    trusted = stage.board is not None  # which was checked already
    for candidate, outcome in runs:
        if outcome.kind != "ok" and not _intact(candidate, folder):
            raise DamagedFile(f"{folder / candidate.library} was lost while it was measured; it is built again")
        if outcome.kind in (_SUSPECT if stage.gpu is None else _SUSPECT_ON_GPU) and not trusted:
            check_machine(stage)  # before a candidate goes into quarantine for good
            trusted = stage.gpu is None  # a GPU may be lost at any time
        trial = _outcome_trial(stage, candidate, outcome)
        if outcome.kind == "ok":
            session.take(outcome.value)
        trials += _log(stage, [trial])
    return trials


def _timer(
    stage: Stage, progress: CandidateProgress, folder: Path, session: Session, truth: Any, runner: Any
) -> Callable[[Candidate], dict[str, Any]]:
    """Return a function that times a candidate.

    Args:
        session: what this stage has learnt from earlier candidates.
        truth: the task's reference; None where there are no checks.
        runner: what times libraries; None for a simulated device.
    """
    if stage.simulated:
        times_of = simulated.timer(stage)
        return lambda candidate: _answer(Guarded(times_of(candidate)), 0.0)
    from autotune.tvm_backend.kernels.verify import Verifier

    verifier = None if truth is None or truth.problem else Verifier(truth, runner.device)
    guard = _guard(stage, session.quiet)
    best = min(session.times, default=None)

    def timed(candidate: Candidate) -> dict[str, Any]:
        """Return `times` in microseconds, and `checked`, the seconds of verification if this candidate is the best."""
        nonlocal best
        progress.begin(candidate)
        library, goal = folder / candidate.library, best

        def once() -> list[float]:
            times: list[float] = runner.time(library, candidate.args, goal)
            return times

        found = guard.measure(once) if guard else Guarded(once())
        middle, checked = statistics.median(found.times), 0.0
        if best is None or middle < best:
            checked = _verify(verifier, runner, library)
            best = middle
        return _answer(found, checked)

    return timed


def _runner(stage: Stage) -> Any:
    """What times libraries on the stage's device, which this process takes if it is a GPU; None if it is simulated."""
    if stage.simulated:
        return None
    from autotune.tvm_backend.kernels.run import Runner, Timing, open_device

    configure_threads(stage)
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
    """Return a guard against disturbances; None for a board, and for a GPU that NVML does not show."""
    measure = stage.config.measure
    made = partial(Guard, stage.cpus, quiet, measure.disturbed_again, measure.timeout_s / 2)
    if stage.gpu is not None:
        counters = GpuCounters.open(stage.gpu.uuid)
        return made(begin=GpuWatcher(counters).begin) if counters else None
    return made() if stage.spec.target_kind == "llvm" and stage.board is None else None


def _verify(verifier: Any, runner: Any, library: Path) -> float:
    """Verify a kernel; return the seconds that took."""
    if verifier is None:
        return 0.0
    started = time.perf_counter()
    verifier.check(runner.load(library)["main"])
    return time.perf_counter() - started


def configure_threads(stage: Stage) -> None:
    """Set the variables that TVM's runtime reads when its thread pool starts.

    By default it would use half of the CPUs. It binds threads to cores counted from zero, which is right only where
    the stage may use all CPUs.
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
    """Log trials. Failed ones go into quarantine first, so that a kill in between does not run them again."""
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
        needs=candidate.needs,
    )
