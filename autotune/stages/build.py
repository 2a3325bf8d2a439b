"""Build: compile the candidates of a round, and make the reference of its task first if there is none.

A build that exceeds its time limit is killed. The reference is what the task computes without a schedule. It is made
once and kept beside the tuning log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.processes.children import ItemResult
from autotune.processes.isolate import isolated
from autotune.stages.blame import CandidateProgress, tracked, with_quarantine
from autotune.stages.stage import Stage
from autotune.storage.disk_space import check_room
from autotune.storage.formats import Candidate, Failure
from autotune.storage.scratch import temporary_folder
from autotune.storage.seals import LIBRARY, seal

if TYPE_CHECKING:
    from autotune.tvm_backend.kernels.verify import Reference

_LIMIT_S = 60.0
# A problem may pass. Each wait for the next try is four times as long as the one before, up to this number of waits.
_AGAIN_S = 600.0
_MAX_WAITS = 8


def run(stage: Stage) -> dict[str, Any]:
    """Publish the measure stage, in which every candidate has a library or a failure.

    The search of the next round is published first, so that it can run while this one is measured. If the build is
    killed between the two, it runs again, and leaves a search that has been published as it is.

    Returns:
        `built` and `failed`, counts of candidates, and `reference`, the seconds spent on the task's reference.

    Raises:
        DamagedFile: The task cannot be read. No candidate is marked as failed.
        DiskProblem: The disk is full. No candidate is marked as failed.
        MachineProblem: Nothing can be built on this machine. No candidate is marked as failed.
    """
    stage.clear_artifacts()
    stage.bench.check_program()
    _, seconds = ensure_reference(stage)
    with tracked(stage) as progress:
        built = _build(stage, progress)
    failed = sum(candidate.failure is not None for candidate in built)
    if failed:
        check_room(stage.artifacts, temporary_folder())  # a full disk makes builds fail, which is no candidate's fault
    if 2 * failed > len(built):
        stage.bench.check(stage.file.candidates)  # a missing linker does, too
    stage.publish_search(stage.file.round + 1)
    stage.advance("measure", built)
    return {"built": len(built) - failed, "failed": failed, "reference": seconds}


def _build(stage: Stage, progress: CandidateProgress) -> list[Candidate]:
    """Build all candidates that are not in quarantine; return all of them, in order."""
    candidates = with_quarantine(stage, progress, stage.file.candidates)
    allowed = [candidate for candidate in candidates if candidate.failure is None]
    limit_s = stage.bench.device.build_timeout_s(stage.config)
    outcomes = isolated(allowed, lambda: _builder(stage, progress), limit_s=limit_s)
    built = {candidate.hash: _result(stage, candidate, outcome) for candidate, outcome in outcomes}
    return [built.get(candidate.hash, candidate) for candidate in candidates]


def _builder(stage: Stage, progress: CandidateProgress) -> Callable[[Candidate], tuple[str, float]]:
    """Return a function that builds a candidate and returns the name of its library, and the seconds that took."""
    build_candidate = stage.bench.builder()

    def build(candidate: Candidate) -> tuple[str, float]:
        progress.begin(candidate)
        began = time.monotonic()
        library = build_candidate(candidate)
        return library, time.monotonic() - began

    return build


def _result(stage: Stage, candidate: Candidate, outcome: ItemResult) -> Candidate:
    if outcome.kind != "ok":
        return replace(candidate, failure=Failure("build", outcome.kind, outcome.reason))
    library, seconds = outcome.value
    path = stage.artifacts / library
    needs = stage.bench.needs(path)
    mark = seal(LIBRARY, stage.bench.digest(path))
    return replace(candidate, library=library, seal=mark, needs=needs, build_s=round(seconds, 3))


def ensure_reference(stage: Stage) -> tuple[Reference | None, float]:
    """Load the reference of the stage's task, or make it first.

    The reference of a task that cannot be run without a schedule within 60 seconds holds the problem instead. It is
    tried again by a stage ten minutes later, and then after longer waits.

    Returns:
        The reference, None where candidates are not verified or not for this machine, and the seconds spent.

    Raises:
        DamagedFile: The task cannot be read.
        DiskProblem: The disk is full.
        MachineProblem: Nothing can be built or run on this machine.
    """
    target = stage.bench.reference_target
    if target is None or not stage.config.measure.verify:
        return None, 0.0
    from autotune.tvm_backend.kernels import verify

    started = time.monotonic()
    path = stage.workspace.tuning_log(stage.spec.target_key, stage.task.hash).reference
    reference = verify.load(path)
    if reference is None or (reference.problem and _is_due(path, reference.tries)):
        tries = reference.tries + 1 if reference else 1
        program = stage.program  # read outside of `make`: a damaged file is not a problem of the task

        def make(_: int) -> None:
            verify.save(path, verify.compute(program, target))

        ((_, outcome),) = isolated([0], lambda: make, limit_s=_LIMIT_S)
        if outcome.kind != "ok":
            check_room(stage.workspace.logs)  # else a full disk would leave the task unverified for good
            stage.bench.check()  # so would a missing linker
            verify.save(path, verify.Reference(problem=f"{outcome.kind}: {outcome.reason}", tries=tries))
        reference = verify.load(path)
    return reference, round(time.monotonic() - started, 3)


def _is_due(path: Path, tries: int) -> bool:
    """Return whether a reference that could not be made so often is to be tried again."""
    wait_s: float = _AGAIN_S * 4 ** min(tries - 1, _MAX_WAITS)
    return time.time() - path.stat().st_mtime >= wait_s
