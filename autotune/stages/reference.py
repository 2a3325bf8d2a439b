"""What a task computes, known before its first candidate is measured: made once, kept beside the tuning log."""

from __future__ import annotations

import time
from typing import Any

from autotune.processes.isolate import isolated
from autotune.stages.stage import Stage
from autotune.storage.room import check_room

_LIMIT_S = 60.0


def ensure(stage: Stage) -> tuple[Any, float]:
    """The reference of the stage's task, and the seconds that it took to get it; None where there are no checks.

    A task that cannot be run without a schedule within 60 seconds has a reference that says so.

    Raises:
        DamagedFile: the task cannot be read.
        DiskProblem: the disk is full.
    """
    if stage.simulated or not stage.config.measure.verify:
        return None, 0.0
    from autotune.tvm_backend.kernels import verify

    started = time.monotonic()
    path = stage.workspace.tuning_log(stage.spec.target_key, stage.task.hash).reference
    reference = verify.load(path)
    if reference is None:
        description = stage.spec.target if stage.spec.target_kind == "llvm" else stage.spec.target["host"]

        program = stage.program  # read here: that its file is damaged says nothing of the task

        def make(_: int) -> None:
            verify.save(path, verify.compute(program, description))

        ((_, outcome),) = isolated([0], lambda: make, limit_s=_LIMIT_S)
        if outcome.kind != "ok":
            check_room(stage.workspace.logs)  # on a full disk the task would stay unchecked for good
            verify.save(path, verify.Reference(problem=f"{outcome.kind}: {outcome.reason}"))
        reference = verify.load(path)
    return reference, round(time.monotonic() - started, 3)
