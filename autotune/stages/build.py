"""Build: compile the candidates of a round, each within a time limit that kills."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from autotune.processes.isolate import ItemResult, isolated
from autotune.stages import reference, simulated
from autotune.stages.progress import Progress, followed, shut_out
from autotune.stages.stage import Stage, check_machine
from autotune.storage.formats import Candidate, Failure
from autotune.storage.job_files import make_folder
from autotune.storage.room import check_room


def run(stage: Stage) -> dict[str, Any]:
    """Publish the measure stage, in which every candidate has a library or a failure.

    The search of the next round is published before it, so that it can go on while this one is measured. Killed
    between the two, this build runs again, and finds that search there or further on.

    Raises:
        DamagedFile: the task cannot be read; no candidate has failed for that.
        DiskProblem: the disk is full; nor for that.
        MachineProblem: nothing can be built here; nor for that.

    Returns:
        `built` and `failed`, counts of candidates, and the seconds that the task's `reference` took.
    """
    folder = stage.paths.artifacts_of(stage.file.task, stage.file.round)
    make_folder(stage.paths.artifacts)
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    if not stage.simulated:
        stage.check_program()
    _, seconds = reference.ensure(stage)
    with followed(stage) as progress:
        built = _build(stage, progress, folder)
    failed = sum(candidate.failure is not None for candidate in built)
    if failed:
        check_room(folder, Path(gettempdir()))  # a full disk is no candidate's fault, and looks like one
    if 2 * failed > len(built):
        check_machine(stage)  # nor is a linker that has gone
    stage.publish_search(stage.file.round + 1)
    stage.advance("measure", built)
    return {"built": len(built) - failed, "failed": failed, "reference": seconds}


def _build(stage: Stage, progress: Progress, folder: Path) -> list[Candidate]:
    """The candidates in order, those that may not be built with their failure."""
    candidates = shut_out(stage, progress, stage.file.candidates)
    allowed = [candidate for candidate in candidates if candidate.failure is None]
    limit_s = stage.config.build.timeout_s
    outcomes = isolated(allowed, lambda: _builder(stage, progress, folder), limit_s=limit_s)
    built = {candidate.hash: _result(candidate, outcome, folder) for candidate, outcome in outcomes}
    return [built.get(candidate.hash, candidate) for candidate in candidates]


def _builder(stage: Stage, progress: Progress, folder: Path) -> Callable[[Candidate], str]:
    if stage.simulated:
        return simulated.builder(stage, folder)
    from autotune.tvm_backend.kernels.build import build_candidate

    def build(candidate: Candidate) -> str:
        progress.begin(candidate)
        name = f"{candidate.hash}.so"
        build_candidate(candidate, stage.program, stage.target, folder / name)
        return name

    return build


def _result(candidate: Candidate, outcome: ItemResult, folder: Path) -> Candidate:
    if outcome.kind != "ok":
        return replace(candidate, failure=Failure("build", outcome.kind, outcome.reason))
    data = (folder / outcome.value).read_bytes()
    return replace(candidate, library=str(outcome.value), size=len(data), crc32=zlib.crc32(data))
