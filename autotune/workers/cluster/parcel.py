"""What travels between the workspace and a node: the files that a stage reads, and those that it has written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.config import Config
from autotune.devices import kind_of
from autotune.processes.messages import RunStage
from autotune.storage.device_kind import is_private, target_keys
from autotune.storage.formats import JobSpec, Quarantined, Trial
from autotune.storage.paths import JobPaths, Workspace


@dataclass(frozen=True)
class Parcel:
    """Files and log entries. Paths are relative to the workspace.

    Logs travel as entries, not as bytes: both ends add to them, and each entry is added once.

    Attributes:
        files: The content of files that are new or have changed.
        deleted: Files that are gone.
        trials: New trials, by the path of their tuning log.
        quarantined: New entries of the quarantine.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    trials: Mapping[str, tuple[Trial, ...]] = field(default_factory=dict)
    quarantined: tuple[Quarantined, ...] = ()

    def pack(self) -> bytes:
        """Return it as bytes, which `unpack` reads on the other side."""
        import msgspec

        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> Parcel:
        """Return what was packed."""
        import msgspec

        return msgspec.msgpack.decode(data, type=cls)


@dataclass(frozen=True)
class StageFiles:
    """Which files of a workspace a stage reads and writes; the same on a node, where the workspace is a copy."""

    workspace: Workspace
    spec: JobSpec
    request: RunStage

    @property
    def job(self) -> JobPaths:
        return JobPaths(self.workspace.jobs / self.request.job)

    @property
    def log(self) -> Path:
        """The tuning log of the stage's task."""
        return self._log(self.request.task)

    @property
    def _plans(self) -> bool:
        """Whether the stage looks at all tasks of its job, and beyond: a search or a training."""
        return self.request.kind in ("search", "train")

    def read(self, config: Config) -> Iterator[Path]:
        """Yield the files that the stage reads, whether they exist or not, without logs and `folders`."""
        job = self.job
        task = self.request.task
        yield self.workspace.config
        yield from (self.workspace.root / device.trials for device in config.devices.values() if device.trials)
        yield job.spec
        yield job.in_progress(task, self.request.round)
        if kind_of(self.spec).exists:
            yield from map(job.task, self.spec.tunable if self._plans else (task,))
            yield self.workspace.tuning_log(self.spec.target_key, self.spec.tasks[task].hash).reference
            if self._plans:
                yield from (job.cost_model, job.cost_model_meta)
                yield from (log.features for log in self.workspace.tuning_logs(self.spec.target_key))
                yield from (self.workspace.device_kind(key) for key in (self.spec.target_key, *self._other_keys()))

    def folders(self) -> Iterator[tuple[Path, str]]:
        """Yield the folders of which the stage reads all files with a name that fits a pattern."""
        job = self.job
        request = self.request
        yield job.stages, job.stage(request.task, 0).name.replace("r0000", "r*")
        if request.kind == "measure":
            yield job.artifacts_of(request.task, request.round), "*"

    def logs(self) -> Iterator[Path]:
        """Yield the tuning logs that the stage reads."""
        if not self._plans:
            yield self.log
            return
        yield from map(self._log, self.spec.tunable)
        hashes = [self.spec.tasks[task].hash for task in self.spec.tunable]
        yield from (self.workspace.tuning_log(key, hash).records for key in self._other_keys() for hash in hashes)

    def written(self) -> list[Path]:
        """Return the files that the stage may have written and that are there, without logs.

        In this order they may be published: a stage file commits what the stage did, and a later round comes first.
        """
        job = self.job
        task = self.request.task
        round = self.request.round
        derived = sorted(self.log.parent.glob("*.npz"))
        artifacts = sorted(job.artifacts_of(task, round).glob("*"))
        model = [job.cost_model, job.cost_model_meta] if self._plans else []
        stages = [job.in_progress(task, round), job.stage(task, round + 1), job.stage(task, round)]
        return [path for path in (*derived, *artifacts, *model, *stages) if path.is_file()]

    def may_write(self, path: str) -> bool:
        """Return whether a path, relative to the workspace, is one that the stage may write."""
        job = self.job
        task = self.request.task
        round = self.request.round
        target = self.workspace.root / path
        fixed = (job.cost_model, job.cost_model_meta, job.in_progress(task, round), job.stage(task, round))
        derived = target.suffix == ".npz" and target.parent == self.log.parent
        later = target == job.stage(task, round + 1)
        return target in fixed or derived or later or target.parent == job.artifacts_of(task, round)

    def _log(self, task: int) -> Path:
        return self.workspace.tuning_log(self.spec.target_key, self.spec.tasks[task].hash).records

    def _other_keys(self) -> list[str]:
        own = self.spec.target_key
        if is_private(own) or not kind_of(self.spec).exists:
            return []
        return [key for key in target_keys(self.workspace) if key != own and not is_private(key)]
