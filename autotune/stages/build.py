"""Build: compile the candidates of a round. A build that exceeds its time limit is killed."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.machine.gpus import KIND
from autotune.processes.isolate import ItemResult, isolated
from autotune.stages import reference, simulated
from autotune.stages.progress import CandidateProgress, tracked, with_quarantine
from autotune.stages.stage import Stage, check_machine
from autotune.storage.formats import Candidate, Failure
from autotune.storage.job_files import make_folder
from autotune.storage.room import check_room, temporary_folder
from autotune.tvm_backend.cuda import cubin


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
    folder = stage.paths.artifacts_of(stage.file.task, stage.file.round)
    make_folder(stage.paths.artifacts)
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    if not stage.simulated:
        stage.check_program()
    _, seconds = reference.ensure(stage)
    with tracked(stage) as progress:
        built = _build(stage, progress, folder)
    failed = sum(candidate.failure is not None for candidate in built)
    if failed:
        check_room(folder, temporary_folder())  # a full disk makes builds fail, too, and is not their fault
    if 2 * failed > len(built):
        check_machine(stage)  # neither is a missing linker
    stage.publish_search(stage.file.round + 1)
    stage.advance("measure", built)
    return {"built": len(built) - failed, "failed": failed, "reference": seconds}


def _build(stage: Stage, progress: CandidateProgress, folder: Path) -> list[Candidate]:
    """Build all candidates that are not in quarantine; return all of them, in order."""
    candidates = with_quarantine(stage, progress, stage.file.candidates)
    allowed = [candidate for candidate in candidates if candidate.failure is None]
    limit_s = stage.config.build.timeout_s
    outcomes = isolated(allowed, lambda: _builder(stage, progress, folder), limit_s=limit_s)
    on_gpu = stage.spec.target_kind == KIND
    built = {candidate.hash: _result(candidate, outcome, folder, on_gpu=on_gpu) for candidate, outcome in outcomes}
    return [built.get(candidate.hash, candidate) for candidate in candidates]


def _builder(stage: Stage, progress: CandidateProgress, folder: Path) -> Callable[[Candidate], str]:
    """Return a function that builds a candidate and returns the name of its library."""
    if stage.simulated:
        return simulated.builder(stage, folder)
    from autotune.tvm_backend.kernels.build import build_candidate

    def build(candidate: Candidate) -> str:
        progress.begin(candidate)
        name = f"{candidate.hash}.so"
        build_candidate(candidate, stage.program, stage.target, folder / name)
        return name

    return build


def _result(candidate: Candidate, outcome: ItemResult, folder: Path, *, on_gpu: bool) -> Candidate:
    if outcome.kind != "ok":
        return replace(candidate, failure=Failure("build", outcome.kind, outcome.reason))
    data = (folder / outcome.value).read_bytes()
    found = replace(candidate, library=str(outcome.value), size=len(data), crc32=zlib.crc32(data))
    return replace(found, needs=cubin.needs(data)) if on_gpu else found
