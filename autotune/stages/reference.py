"""The reference of a task: what it computes without a schedule. It is made once and kept beside the tuning log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from autotune.processes.isolate import isolated
from autotune.stages.stage import Stage
from autotune.storage.room import check_room

_LIMIT_S = 60.0
# A problem may pass. Each wait for the next try is four times as long as the one before, up to this number of waits.
_AGAIN_S = 600.0
_MOST_WAITS = 8


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
    wait_s: float = _AGAIN_S * 4 ** min(tries - 1, _MOST_WAITS)
    return time.time() - path.stat().st_mtime >= wait_s
