"""What tests of stages share: a simulated job of two tasks, a job that searches for its plan, and trials of both."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.commands.submit.publish import Submission, submit
from autotune.config import Config
from autotune.device_settings import DeviceSettings
from autotune.options import TuningOptions
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import StageFile, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

Make = Callable[..., JobPaths]
TRIALS = 200  # of the job that searches for its plan


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


@pytest.fixture(scope="session")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions, each with ReLU."""
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    draw = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(draw.uniform(-0.1, 0.1, (16, 16, 3, 3)).astype(np.float32), name) for name in ("v", "w")
    ]
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 8, 8]) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="session")
def submitted_exploring(convolutions: Path) -> JobPaths:
    """A job that searches for its plan, as it was submitted."""
    workspace = Workspace(convolutions.parent)
    options = TuningOptions(explore=True, trials=TRIALS, name="net")
    spec = submit(workspace, Config(), Submission(convolutions, options), lambda step: None)
    return workspace.job(spec.id, spec.name)


@pytest.fixture
def exploring(workspace: Workspace, submitted_exploring: JobPaths) -> JobPaths:
    """A copy of that job."""
    shutil.copytree(submitted_exploring.folder, workspace.jobs / submitted_exploring.folder.name)
    return JobPaths(workspace.jobs / submitted_exploring.folder.name)


@pytest.fixture
def know_all(workspace: Workspace, exploring: JobPaths) -> Callable[..., None]:
    """Adds so many trials of each task that a function gives a time for."""

    return lambda time_us, trials=1: add_trials(workspace, exploring, time_us, trials)


def add_trials(workspace: Workspace, paths: JobPaths, time_us: Callable[[str], float | None], trials: int) -> None:
    """Add trials of each task of a job for whose name there is a time."""
    spec = read_spec(paths)
    for index in spec.tunable:
        time = time_us(spec.tasks[index].name)
        log = TuningLog(workspace.tuning_log(spec.target_key, spec.tasks[index].hash).records)
        logged = len(log.entries())
        for number in range(logged, logged + trials) if time is not None else ():
            log.add([Trial(f"{index}-{number}", [], [], (time,), None, "0009-other", 0, 0.0)])


def choosing(workspace: Workspace, paths: JobPaths) -> Stage:
    task = read_spec(paths).tunable[0]
    for path in paths.stage_files_of(task):
        path.unlink()
    file = StageFile(task, 3, "choose")
    formats.write(paths.stage(task, 3), file)
    return Stage(workspace, paths, read_spec(paths), Config(), file, (0,))


def winograd_is_fast(name: str) -> float:
    return 5.0 if "winograd" in name and "on_1" not in name else 10.0


def of_each_task(paths: JobPaths, share: float) -> int:
    """Return how many trials of each task make this share of the trials of the job, or a little more."""
    return math.ceil(share * TRIALS / len(read_spec(paths).tunable))
