"""A job whose candidates are the kernels that do harm."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune import config
from autotune.processes.messages import RunStage
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import JobSpec, StageFile, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

from .. import hostile
from ..hostile import in_a_child


def build_libraries(folder: Path, *names: str) -> Path:
    """Build kernels, each with its candidate beside it, in a process of their own: this one must stay fit to fork."""

    def build() -> None:
        for name in names:
            formats.write(folder / f"{name}.json", StageFile(0, 0, "measure", (hostile.library(name, folder),)))

    assert in_a_child(build) == 0
    return folder


class HostileJob:
    """A job with one task, which doubles sixteen numbers, and whose round 0 is to be measured on a device."""

    device = "cpu"

    def __init__(self, workspace: Workspace, paths: JobPaths, libraries: Path) -> None:
        self.workspace = workspace
        self.paths = paths
        self.libraries = libraries
        self.paths.tasks.mkdir()
        in_a_child(lambda: self.write_task(hostile.program("good")))

    def write_task(self, program: Any) -> None:
        from autotune.tvm_backend.search.tasks import task_hash, write_program

        spec = formats.read(JobSpec, self.paths.spec)
        write_program(self.paths.task(0), program)
        formats.write(self.paths.spec, replace(spec, tasks=(replace(spec.tasks[0], hash=task_hash(program)),)))

    def put(self, *names: str) -> None:
        folder = self.paths.artifacts_of(0, 0)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            os.link(self.libraries / f"{name}.so", folder / f"{name}.so")
        candidates = [formats.read(StageFile, self.libraries / f"{name}.json").candidates[0] for name in names]
        formats.write(self.paths.stage(0, 0), StageFile(0, 0, "measure", tuple(candidates)))

    def stage(self, attempt: int = 0) -> Stage:
        request = RunStage(0, self.paths.folder.name, 0, 0, "measure", (0,), 0.0, device=self.device, attempt=attempt)
        return Stage.load(self.workspace, config.load_config(self.workspace.config), request)

    def trials(self) -> dict[str, Trial]:
        """What is in the log of the task, also when its round has ended."""
        spec = formats.read(JobSpec, self.paths.spec)
        log = TuningLog(self.workspace.tuning_log(spec.target_key, spec.tasks[0].hash).records)
        return {trial.hash: trial for trial in log.trials()}
