"""Measure: time the built candidates on the target device, one after the other, and log every one of them."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from autotune.errors import DamagedFile, DiskProblem, clipped
from autotune.machine.disturbance import Quiet
from autotune.processes.children import ItemResult
from autotune.stages import build
from autotune.stages.bench import OpenDevice, Timer, is_intact
from autotune.stages.blame import CandidateProgress, tracked, with_quarantine
from autotune.stages.guard import load_quiet, save_quiet
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, Failure, Trial
from autotune.storage.trees import discard_tree

# What is built for a candidate may be gone so many times while it is measured, until that is its failure.
_LOSSES = 3
_MAX_WHY_LENGTH = 160  # characters


@dataclass
class Session:
    """What is known after the candidates that were timed so far.

    Attributes:
        times: Medians of the task's trials, in microseconds.
        quiet: The sentinel's times on this machine without other work.
        checks: Seconds of each verification.
        again: Number of measurements that were repeats.
        failures: What each session on a board said that failed.
        unverified: Why the task's kernels cannot be verified; empty if they can, or are not to be.
    """

    times: list[float]
    quiet: Quiet
    checks: list[float] = field(default_factory=list)
    again: int = 0
    failures: list[str] = field(default_factory=list)
    unverified: str = ""
    _known: Quiet = field(init=False)

    def __post_init__(self) -> None:
        self._known = self.quiet

    def take(self, value: dict[str, Any]) -> None:
        """Add the answer for a candidate that was timed."""
        self.times.append(statistics.median(value["times"]))
        self.checks += [value["checked"]] if value["checked"] else []
        self.again += value["again"]
        if value["sentinel_us"]:
            self.quiet = self.quiet.with_time(round(value["sentinel_us"], 3))

    def save(self, stage: Stage) -> None:
        """Write the sentinel's times for later stages, if they have changed.

        Raises:
            DiskProblem: They could not be written.
        """
        if self.quiet != self._known:
            save_quiet(stage.workspace, self.quiet)

    def summary(self, disturbed: list[Trial]) -> dict[str, Any]:
        """Return what the daemon is told besides the counts. What went wrong is included only where it did."""
        told: dict[str, Any] = {"verified": len(self.checks), "verification": round(sum(self.checks), 3)}
        if self.unverified:
            told["unverified"] = self.unverified
        if self.again:
            told["again"] = self.again
        if self.failures:
            told["sessions_failed"] = self.failures
        if disturbed:
            told |= {"disturbed": len(disturbed), "busy": disturbed[-1].disturbed}
        return told


def run(stage: Stage) -> dict[str, Any]:
    """Append a trial for every candidate to the tuning log, one by one, then publish the train stage.

    A candidate that would be the best of its task is verified against the unscheduled task; a wrong result is a
    failure. A candidate that crashed or hung goes into quarantine before its trial is written. One that is in the log
    already is not measured again. When a library is missing or damaged, because the machine crashed between the two
    stages, or was built by another user, the round goes back to build.

    Raises:
        MachineProblem: a kernel that is known to be good does not run here either. No candidate is blamed.
        DamagedFile: a library was lost meanwhile, because `clean` has removed the job, say. No candidate is blamed.

    Returns:
        `measured` and `failed`, counts of trials appended; `best_us` of the round; `verified`, a count of candidates,
        and `verification`, its seconds. With `rebuild` true, the round has gone back to build. Where the task cannot be
        verified also `unverified`, the reason; where all have failed also `why`, the last one's. Where other work
        disturbed measurements also `again`, how often they were repeated; `disturbed`, the number of trials that are
        marked; and `busy`, the reason. Where sessions on boards failed also `sessions_failed`, what each of them said.
    """
    logged = {entry.hash: entry.median_us for entry in stage.log().entries()}
    waiting = [candidate for candidate in stage.file.candidates if candidate.hash not in logged]
    if any(candidate.failure is None and not is_intact(stage.bench, candidate) for candidate in waiting):
        stage.advance("build", stage.file.candidates)
        return {"measured": 0, "failed": 0, "rebuild": True}
    session = Session(list(filter(None, logged.values())), load_quiet(stage.workspace))
    with tracked(stage) as progress:
        trials = _measure(stage, progress, with_quarantine(stage, progress, waiting), session)
    session.save(stage)
    stage.advance("train")
    discard_tree(stage.artifacts)
    timed = [trial.median_us for trial in trials if trial.median_us is not None]
    counts: dict[str, Any] = {
        "measured": len(timed),
        "failed": len(trials) - len(timed),
        "best_us": min(timed, default=None),
    }
    if trials and not timed:
        counts["why"] = clipped(
            next(trial.failure.reason for trial in reversed(trials) if trial.failure), _MAX_WHY_LENGTH
        )
    return {**counts, **session.summary([trial for trial in trials if trial.disturbed])}


def _measure(stage: Stage, progress: CandidateProgress, waiting: Sequence[Candidate], session: Session) -> list[Trial]:
    """Measure the waiting candidates; return the trials that were logged."""
    trials = _log(stage, [_trial(stage, item, (), item.failure) for item in waiting if item.failure is not None])
    truth, _ = build.ensure_reference(stage)
    session.unverified = "" if truth is None else truth.problem
    libraries = [candidate for candidate in waiting if candidate.failure is None]
    bench = stage.bench
    cleared = False  # whether the machine is known to be fit, so that a failure is the candidate's
    runs = bench.results(libraries, truth, partial(_timer, stage, progress, session), session.failures)
    for candidate, outcome in runs:
        if outcome.kind != "ok" and bench.is_lost(candidate):
            outcome = _lost(stage, candidate)
        if outcome.kind in bench.suspect and not cleared:
            bench.check(stage.file.candidates)  # before a candidate goes into quarantine for good
            cleared = bench.stays_fit
        if outcome.kind == "ok":
            session.take(outcome.value)
        trials += _log(stage, [_outcome_trial(stage, candidate, outcome)])
    return trials


def _lost(stage: Stage, candidate: Candidate) -> ItemResult:
    """Note that what was built for a candidate is gone; after a few times it is the candidate that removes it.

    Raises:
        DamagedFile: It has to be built again.
    """
    times = candidate.lost + 1
    if times >= _LOSSES:
        return ItemResult("crash", reason=f"what was built for it was gone {times} times after it had run")
    noted = [replace(item, lost=times) if item.hash == candidate.hash else item for item in stage.file.candidates]
    with contextlib.suppress(DiskProblem):  # `clean` may have removed the job
        stage.advance("measure", noted)
    raise DamagedFile(f"{stage.artifacts / candidate.library} was lost while it was measured; it is built again")


def _timer(stage: Stage, progress: CandidateProgress, session: Session, device: OpenDevice) -> Timer:
    """Return a function that times a candidate on an open device, and verifies it if it is the best so far.

    The function returns the attributes of `Guarded`; `checked`, the seconds of verification; and `seconds`, of all.

    Args:
        session: What this stage has learnt from earlier candidates.
        device: What times it.
    """
    guard = stage.bench.guard(session.quiet)
    best_us = min(session.times, default=None)

    def timed(candidate: Candidate) -> dict[str, Any]:
        nonlocal best_us
        progress.begin(candidate)
        began = time.monotonic()
        goal_us = best_us
        guarded = guard.measure(lambda: device.time(candidate, goal_us))
        median_us = statistics.median(guarded.times)
        checked = 0.0
        if best_us is None or median_us < best_us:
            checked = device.verify(candidate)
            best_us = median_us
        return {**asdict(guarded), "checked": checked, "seconds": time.monotonic() - began}

    return timed


def _outcome_trial(stage: Stage, candidate: Candidate, outcome: ItemResult) -> Trial:
    if outcome.kind == "ok":
        times = tuple(round(value, 4) for value in outcome.value["times"])
        trial = _trial(stage, candidate, times, None, outcome.value["disturbed"])
        return replace(trial, measure_s=round(outcome.value["seconds"], 3))
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
        build_s=candidate.build_s,
    )
