"""A node's copy of a workspace: what the bridge sends is put into it, and what stages wrote is taken out of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.storage.atomic import stamp, temporary_name
from autotune.storage.formats import Quarantined, Trial
from autotune.storage.job_files import orphaned_artifacts
from autotune.storage.locks import Lease, try_lock
from autotune.storage.paths import TaskLogPaths, Workspace
from autotune.storage.quarantine import Quarantine
from autotune.storage.tuning_log import TuningLog
from autotune.workers.cluster.parcel import Parcel, StageFiles

_PREFIX = "autotune-node-"


@dataclass
class Scratch:
    """The copy. Nothing in it has to survive its process.

    Attributes:
        workspace: The copy as a workspace, in which workers run stages.
        lock: Is held while its process lives, so that the copies of dead ones are found and deleted.
    """

    workspace: Workspace
    lock: Lease
    _logs: dict[Path, TuningLog] = field(default_factory=dict)
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
        shutil.rmtree(self.workspace.root, ignore_errors=True)
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
                _log_of(features).records.open("x").close()
        for folder in orphaned_artifacts(stage.job):
            shutil.rmtree(folder, ignore_errors=True)

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

    def _log(self, path: Path) -> TuningLog:
        return self._logs.setdefault(path, TuningLog(path))

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


def _log_of(derived: Path) -> TaskLogPaths:
    return TaskLogPaths(derived.with_name(derived.name.split(".")[0] + ".jsonl"))


def _delete_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            lock = try_lock(folder / ".lock")
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()
