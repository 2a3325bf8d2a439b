"""What tests of stages share: a simulated job of two tasks, and trials of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.config import Config
from autotune.device_settings import DeviceSettings
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import StageFile, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

Make = Callable[..., JobPaths]


@pytest.fixture
def know(workspace: Workspace) -> Callable[..., None]:
    """Adds a trial of a task to the logs of simulated devices."""

    def know(task: int, time_us: float) -> None:
        log = TuningLog(workspace.tuning_log("simulated-test", f"{task:016x}").records)
        log.add([Trial(f"{task}-{time_us:g}", [], [], (time_us,), None, "0009-other", 0, 0.0)])

    return know


AT_ONCE = Config(devices={"gpu0": DeviceSettings(speed=1000.0)})  # what it simulates takes no time


def stage_of(workspace: Workspace, paths: JobPaths) -> Stage:
    paths.stage(0, 0).unlink(missing_ok=True)
    file = StageFile(0, 3, "compile")
    formats.write(paths.stage(0, 3), file)
    return Stage(workspace, paths, read_spec(paths), AT_ONCE, file, (0,))


def kinds(paths: JobPaths) -> list[Any]:
    return [(file.task, file.round, file.kind) for file in (formats.read(StageFile, at) for at in paths.stage_files())]


@pytest.fixture
def job(make_job: Make, simulate: Callable[..., None]) -> Callable[[float], JobPaths]:
    """A job of two tasks, with weights of 1 and 2, that has to take so many milliseconds."""
    simulate(speed=1000.0)
    return lambda stop_at_ms: make_job(target="simulated", stop_at_ms=stop_at_ms)
