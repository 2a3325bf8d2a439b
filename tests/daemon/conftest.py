"""The tuning logs of queued jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.storage.formats import (
    Failure,
    Trial,
)
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog


@pytest.fixture
def add(workspace: Workspace) -> Callable[..., None]:
    """Adds trials to the tuning log of a task; None stands for one that failed."""

    def add(task: int, *times: float | None) -> None:
        log = TuningLog(workspace.tuning_log("llvm-test", f"{task:016x}").records)
        logged = len(log.trials())
        for number, value in enumerate(times, start=logged):
            log.add([_trial(f"{task}-{number}", value)])

    return add


def _trial(hash: str, time_us: float | None) -> Trial:
    failure = Failure("build", "error", "no") if time_us is None else None
    return Trial(hash, [], [], () if time_us is None else (time_us,), failure, "0009-other", 0, 0.0)
