"""What travels between the workspace and a node, and the node's copy of the workspace.

What the bridge sends is put into the copy, and what stages wrote is taken out of it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec

from autotune.config import Config
from autotune.devices import kind_of
from autotune.processes.messages import RunStage
from autotune.storage.atomic import stamp, temporary_name
from autotune.storage.device_kind import is_private, target_keys
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.job_files import orphaned_artifacts
from autotune.storage.locks import Lease, try_lock
from autotune.storage.paths import JobPaths, TaskLogPaths, Workspace
from autotune.storage.quarantine import Quarantine, Quarantined
from autotune.storage.trees import discard_tree
from autotune.storage.tuning_log import TuningLog

_PREFIX = "autotune-node-"


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
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> Parcel:
        """Return what was packed."""
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
        if kind_of(self.spec).has_model:
            yield from map(job.task, self.spec.tunable if self._plans else (task,))
            yield self.workspace.tuning_log(self.spec.target_key, self.spec.tasks[task].hash).reference
            if self._plans:
                yield from (job.cost_model, job.cost_model_meta)
                yield from (log.features for log in self.workspace.tuning_logs(self.spec.target_key))
                yield from (TaskLogPaths(self._log(index)).claims for index in self.spec.tunable)
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
        derived = sorted((*self.log.parent.glob("*.npz"), *self.log.parent.glob("*.claims")))
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
        derived = target.suffix in (".npz", ".claims") and target.parent == self.log.parent
        later = target == job.stage(task, round + 1)
        return target in fixed or derived or later or target.parent == job.artifacts_of(task, round)

    def _log(self, task: int) -> Path:
        return self.workspace.tuning_log(self.spec.target_key, self.spec.tasks[task].hash).records

    def _other_keys(self) -> list[str]:
        own = self.spec.target_key
        if is_private(own) or not kind_of(self.spec).has_model:
            return []
        return [key for key in target_keys(self.workspace) if key != own and not is_private(key)]


@dataclass
class Scratch:
    """The copy. Nothing in it has to survive its process.

    Attributes:
        workspace: The copy as a workspace, in which workers run stages.
        lock: Is held while its process lives, so that the copies of dead ones are found and deleted.
    """

    workspace: Workspace
    lock: Lease
    _log: Callable[[Path], TuningLog] = field(default_factory=lambda: cache(TuningLog))
    _told: dict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))
    _told_quarantined: int = 0

    @classmethod
    def make(cls) -> Scratch:
        """Make an empty copy, and delete those of processes that are gone."""
        _delete_abandoned()
        root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getuid()}-"))
        lock = try_lock(root / ".lock")
        assert lock is not None
        workspace = Workspace(root)
        for folder in (workspace.jobs, workspace.logs):
            folder.mkdir()
        return cls(workspace, lock)

    def remove(self) -> None:
        """Delete the copy."""
        discard_tree(self.workspace.root)
        self.lock.release()

    def put(self, parcel: Parcel, stage: StageFiles) -> None:
        """Take in what was sent for a stage."""
        for name, data in parcel.files.items():
            _write(self.workspace.root / name, data)
        for name in parcel.deleted:
            (self.workspace.root / name).unlink(missing_ok=True)
        for path, trials in ((self.workspace.root / name, trials) for name, trials in parcel.trials.items()):
            self._log(path).add(trials)
            self._told[path].update(trial.hash for trial in trials)
        if parcel.quarantined:
            Quarantine(self.workspace.quarantine).add(parcel.quarantined)
        for features in stage.log.parent.glob("*.npz"):  # a task counts as known by its log
            with contextlib.suppress(FileExistsError):
                features.with_name(features.name.split(".")[0] + ".jsonl").open("x").close()
        for folder in orphaned_artifacts(stage.job):
            discard_tree(folder)

    def watch(self, stage: StageFiles) -> Callable[[], Parcel]:
        """Return a function that tells, once the stage has ended, what it has written since this call."""
        before = _stamps(stage)

        def written() -> Parcel:
            after = _stamps(stage)
            files = {self._name(path): path.read_bytes() for path, seen in after.items() if before.get(path) != seen}
            deleted = tuple(self._name(path) for path in before if path not in after)
            return Parcel(files, deleted, self.new_trials(stage), self._new_quarantined())

        return written

    def new_trials(self, stage: StageFiles) -> dict[str, tuple[Trial, ...]]:
        """Return the trials of a stage's task that the bridge has not been told of, and count them as told."""
        told = self._told[stage.log]
        new = tuple(trial for trial in self._log(stage.log).trials() if trial.hash not in told)
        told.update(trial.hash for trial in new)
        return {self._name(stage.log): new} if new else {}

    def _new_quarantined(self) -> tuple[Quarantined, ...]:
        entries = Quarantine(self.workspace.quarantine).entries()
        new = entries[self._told_quarantined :]
        self._told_quarantined = len(entries)
        return tuple(new)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.workspace.root).as_posix()


def _stamps(stage: StageFiles) -> dict[Path, tuple[int, int]]:
    stamps = {}
    for path in stage.written():
        with contextlib.suppress(FileNotFoundError):  # another stage of the node has just replaced or deleted it
            stamps[path] = stamp(path)
    return stamps


def _write(path: Path, data: bytes) -> None:
    """Replace a file at once, as stages read it meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(temporary_name())
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _delete_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            lock = try_lock(folder / ".lock")
            if lock is not None:
                discard_tree(folder)
                lock.release()
