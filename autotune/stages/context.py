"""What every stage is given, and how it leaves the round: at the next step, or ended."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from autotune import devices
from autotune.config import Config
from autotune.devices import Device
from autotune.errors import DamagedFile
from autotune.processes.isolate import KeptChild
from autotune.processes.messages import RunStage
from autotune.storage import atomic, formats
from autotune.storage.formats import Candidate, Failure, JobSpec, Kind, StageFile, TaskSpec
from autotune.storage.job_files import make_folder, read_spec, read_stage
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.quarantine import Quarantine, Quarantined
from autotune.storage.trees import discard_tree
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.types import IRModule, Target

_Stage = TypeVar("_Stage", bound="StageContext")


@dataclass(frozen=True)
class StageContext:
    """What one stage is given that is about to run in a worker.

    Attributes:
        paths, spec: of the job.
        cpus: numbers of the CPUs it may use.
        count: how many candidates a search is asked for; other stages ignore it.
        device: what a measurement runs on, such as `cuda:1`; other stages ignore it.
        attempt: how often the stage has failed since the daemon started.
        cross: whether nothing that is compiled for the job's target may be run here.
        kept: the process that has the device open for one measurement after the other; None where each opens it anew.
    """

    workspace: Workspace
    paths: JobPaths
    spec: JobSpec
    config: Config
    file: StageFile
    cpus: tuple[int, ...]
    count: int = 0
    device: str = ""
    attempt: int = 0
    cross: bool = False
    kept: KeptChild | None = None
    _logs: dict[int, TuningLog] = field(default_factory=dict)

    @classmethod
    def load(
        cls: type[_Stage], workspace: Workspace, config: Config, request: RunStage, kept: KeptChild | None = None
    ) -> _Stage:
        """Read the job and the stage file.

        Raises:
            FileNotFoundError: another worker has finished this stage.
            StorageError: a file of the job is damaged.
        """
        paths = JobPaths(workspace.jobs / request.job)
        spec = read_spec(paths)
        file = read_stage(paths, paths.stage(request.task, request.round), spec)
        given = (request.cpus, request.count, request.device, request.attempt, request.cross)
        return cls(workspace, paths, spec, config, file, *given, kept)

    def __getstate__(self) -> dict[str, object]:
        """Return what the process that has the device open is told: nothing that was read meanwhile."""
        told = {name: self.__dict__[name] for name in self.__dataclass_fields__}
        return {**told, "kept": None, "_logs": {}}

    @property
    def task(self) -> TaskSpec:
        """The task that the stage works on."""
        return self.spec.tasks[self.file.task]

    def log(self, task: int | None = None) -> TuningLog:
        """Return the tuning log of this task, or of another one of the job."""
        index = self.file.task if task is None else task
        if index not in self._logs:
            key = self.spec.tasks[index].hash
            self._logs[index] = TuningLog(self.workspace.tuning_log(self.spec.target_key, key).records)
        return self._logs[index]

    def quarantine(self) -> Quarantine:
        """Return the quarantine of the workspace."""
        return Quarantine(self.workspace.quarantine)

    def quarantined(self, hash: str, failure: Failure, moment: float) -> Quarantined:
        """Make the line of the quarantine for a candidate of this task; `moment` is in seconds since 1970."""
        job = self.paths.folder.name
        return Quarantined(hash, self.spec.target, self.task.hash, failure, job, moment, self.spec.board)

    def pending(self) -> list[Candidate]:
        """Return this task's candidates of its other rounds: proposed, and perhaps not in the log yet."""
        candidates: list[Candidate] = []
        for path in self.paths.stage_files_of(self.file.task):
            # The round has ended since, and its candidates are in the log; or its file is damaged, and they are lost.
            with contextlib.suppress(FileNotFoundError, DamagedFile):
                file = read_stage(self.paths, path, self.spec)
                candidates += file.candidates if file.round != self.file.round else ()
        return candidates

    @property
    def job_device(self) -> Device:
        """The half of the job's device that knows no TVM."""
        return devices.of_job(self.spec, self.config)

    @property
    def artifacts(self) -> Path:
        """The folder of the libraries of this round."""
        return self.paths.artifacts_of(self.file.task, self.file.round)

    def clear_artifacts(self) -> None:
        """Make the folder of the libraries of this round, empty.

        Raises:
            DiskProblem: It could not be made.
        """
        make_folder(self.paths.artifacts)
        discard_tree(self.artifacts)
        make_folder(self.artifacts)

    @cached_property
    def program(self) -> IRModule:
        """The tensor program of the stage's task."""
        return self.program_of(self.file.task)

    def program_of(self, task: int) -> IRModule:
        """Read the tensor program of a task of this job.

        Raises:
            DamagedFile: it is not the program that was submitted.
        """
        from autotune.tvm_backend.search.tasks import read_program

        return read_program(self.paths.task(task), self.spec.tasks[task].hash)

    @cached_property
    def target(self) -> Target:
        """TVM's target of the job."""
        from autotune.tvm_backend.target import tvm_target

        return tvm_target(self.spec.target)

    def advance(self, kind: Kind, candidates: Sequence[Candidate] = ()) -> None:
        """Publish the next step of this round. This commits the stage."""
        following = StageFile(self.file.task, self.file.round, kind, tuple(candidates))
        formats.write(self.paths.stage(self.file.task, self.file.round), following)

    def end_round(self) -> None:
        """Remove this round's libraries and its file, after publishing the next round.

        Libraries are left where a measurement was killed before it could remove them.
        """
        self.publish_search(self.file.round + 1)
        discard_tree(self.artifacts)
        atomic.remove(self.paths.stage(self.file.task, self.file.round))

    def publish_search(self, round: int) -> None:
        """Publish the search of a later round, unless this task has reached that round already."""
        path = self.paths.stage(self.file.task, round)
        if not any(other >= path for other in self.paths.stage_files_of(self.file.task)):
            formats.write(path, StageFile(self.file.task, round, "search"))
