"""Build: compile the candidates of a round. A build that exceeds its time limit is killed."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autotune.processes.isolate import ItemResult, isolated
from autotune.stages import reference
from autotune.stages.progress import CandidateProgress, tracked, with_quarantine
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, Failure
from autotune.storage.job_files import make_folder
from autotune.storage.room import check_room, temporary_folder


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
    make_folder(stage.paths.artifacts)
    shutil.rmtree(stage.artifacts, ignore_errors=True)
    make_folder(stage.artifacts)
    stage.bench.check_program()
    _, seconds = reference.ensure(stage)
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
    limit_s = stage.config.build.timeout_s
    outcomes = isolated(allowed, lambda: _builder(stage, progress), limit_s=limit_s)
    built = {candidate.hash: _result(stage, candidate, outcome) for candidate, outcome in outcomes}
    return [built.get(candidate.hash, candidate) for candidate in candidates]


def _builder(stage: Stage, progress: CandidateProgress) -> Callable[[Candidate], str]:
    """Return a function that builds a candidate and returns the name of its library."""
    build_candidate = stage.bench.builder()

    def build(candidate: Candidate) -> str:
        progress.begin(candidate)
        return build_candidate(candidate)

    return build


def _result(stage: Stage, candidate: Candidate, outcome: ItemResult) -> Candidate:
    if outcome.kind != "ok":
        return replace(candidate, failure=Failure("build", outcome.kind, outcome.reason))
    library = str(outcome.value)
    data = (stage.artifacts / library).read_bytes()
    needs = stage.bench.needs(data)
    return replace(candidate, library=library, size=len(data), crc32=zlib.crc32(data), needs=needs)
