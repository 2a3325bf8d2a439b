"""The reference of a task: what it computes without a schedule. It is made once and kept beside the tuning log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from autotune.processes.isolate import isolated
from autotune.stages.stage import Stage, check_machine
from autotune.storage.room import check_room

_LIMIT_S = 60.0
_AGAIN_S, _MOST_WAITS = 600.0, 8  # a problem may pass: each wait for the next try is four times as long


def ensure(stage: Stage) -> tuple[Any, float]:
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
    if stage.simulated or stage.cross or not stage.config.measure.verify:
        return None, 0.0
    from autotune.tvm_backend.kernels import verify

    started = time.monotonic()
    path = stage.workspace.tuning_log(stage.spec.target_key, stage.task.hash).reference
    reference = verify.load(path)
    if reference is None or (reference.problem and _is_due(path, reference.tries)):
        tries = reference.tries + 1 if reference else 1
        description = _computed_for(stage)
        program = stage.program  # read outside of `make`: a damaged file is not a problem of the task

        def make(_: int) -> None:
            verify.save(path, verify.compute(program, description))

        ((_, outcome),) = isolated([0], lambda: make, limit_s=_LIMIT_S)
        if outcome.kind != "ok":
            check_room(stage.workspace.logs)  # else a full disk would leave the task unverified for good
            check_machine(stage)  # and so would a missing linker
            verify.save(path, verify.Reference(problem=f"{outcome.kind}: {outcome.reason}", tries=tries))
        reference = verify.load(path)
    return reference, round(time.monotonic() - started, 3)


def _is_due(path: Path, tries: int) -> bool:
    """Return whether a reference that could not be made so often is to be tried again."""
    wait_s: float = _AGAIN_S * 4 ** min(tries - 1, _MOST_WAITS)
    return time.time() - path.stat().st_mtime >= wait_s


def _computed_for(stage: Stage) -> dict[str, Any]:
    """Return the target of this machine's CPU, which computes the reference."""
    if stage.spec.board:
        return {"kind": "llvm"}
    return dict(stage.spec.target if stage.spec.target_kind == "llvm" else stage.spec.target["host"])
