"""What a node is sent of the workspace before a stage runs there, and what it sends back, written to the workspace."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autotune.config import Config
from autotune.errors import disk_problem
from autotune.storage.atomic import make_folders, publish_bytes, remove, stamp
from autotune.storage.formats import Trial
from autotune.storage.paths import Workspace
from autotune.storage.quarantine import Quarantine, Quarantined
from autotune.storage.tuning_log import TuningLog
from autotune.workers.cluster.parcel import Parcel, StageFiles

# Identifies the content of a file: its length and its CRC-32.
Content = tuple[int, int]
# The tuning log at a path. The same one each time, so that it is read only as far as it has grown.
Logs = Callable[[Path], TuningLog]
_LIBRARY = ".so"


def content_of(data: bytes) -> Content:
    """Return what tells one content of a file from another."""
    return len(data), zlib.crc32(data)


@dataclass
class NodeCopy:
    """What one node has of the workspace's files, as far as they were sent or came from there."""

    workspace: Workspace
    logs: Logs
    _files: dict[str, Content] = field(default_factory=dict)
    _stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    _trials: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _quarantined: set[tuple[str, str]] = field(default_factory=set)

    def parcel(self, stage: StageFiles, config: Config) -> Parcel:
        """Return what the node lacks for a stage, and count it as sent.

        Raises:
            StorageError: A file or a log cannot be read.
        """
        paths = [*stage.read(config), *(path for folder in stage.folders() for path in _found(*folder))]
        files: dict[str, bytes] = {}
        deleted = []
        for path in dict.fromkeys(paths):
            name = self._name(path)
            data = self._changed(path, name)
            if data is None and name in self._files and not path.exists():
                deleted.append(name)
            elif data is not None:
                files[name] = data
        deleted += self._gone(stage)
        for name in deleted:
            self._forget(name)
        trials = {self._name(log): new for log in stage.logs() if (new := self._new_trials(log))}
        return Parcel(files, tuple(deleted), trials, self._new_quarantined())

    def received(self, parcel: Parcel) -> None:
        """Take note of what the node itself has written."""
        for name, data in parcel.files.items():
            self._files[name] = content_of(data)
            self._stamps.pop(name, None)
        for name in parcel.deleted:
            self._forget(name)
        for name, trials in parcel.trials.items():
            self._trials[name].update(trial.hash for trial in trials)
        self._quarantined.update(map(_entry_name, parcel.quarantined))

    def _changed(self, path: Path, name: str) -> bytes | None:
        """Return the content of a file that the node does not have; None if it has it, or if there is no file."""
        try:
            seen = stamp(path)
            if self._stamps.get(name) == seen:
                return None
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise disk_problem("read", path, error) from error
        self._stamps[name] = seen
        if self._files.get(name) == content_of(data):
            return None
        self._files[name] = content_of(data)
        return data

    def _gone(self, stage: StageFiles) -> list[str]:
        """Return the files that the node has in the folders of a stage and the workspace has not."""
        folders = [(f"{self._name(folder)}/", pattern) for folder, pattern in stage.folders()]
        sent = [name for name in self._files if any(_fits(name, *folder) for folder in folders)]
        return [name for name in sent if not (self.workspace.root / name).exists()]

    def _new_trials(self, log: Path) -> tuple[Trial, ...]:
        has = self._trials[self._name(log)]
        new = tuple(trial for trial in self.logs(log).trials() if trial.hash not in has)
        has.update(trial.hash for trial in new)
        return new

    def _new_quarantined(self) -> tuple[Quarantined, ...]:
        entries = Quarantine(self.workspace.quarantine).entries()
        new = tuple(entry for entry in entries if _entry_name(entry) not in self._quarantined)
        self._quarantined.update(map(_entry_name, new))
        return new

    def _forget(self, name: str) -> None:
        self._files.pop(name, None)
        self._stamps.pop(name, None)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.workspace.root).as_posix()


def _found(folder: Path, pattern: str) -> Iterator[Path]:
    yield from sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def _fits(name: str, folder: str, pattern: str) -> bool:
    return name.startswith(folder) and Path(name).match(pattern) and "/" not in name[len(folder) :]


def _entry_name(entry: Quarantined) -> tuple[str, str]:
    return entry.hash, str(entry.target)


def merge(stage: StageFiles, parcel: Parcel, logs: Logs) -> None:
    """Write all of it. May be called again after an error.

    The stage files come last: they commit what the stage did.

    Raises:
        DiskProblem: Something could not be written.
    """
    if parcel.quarantined:
        Quarantine(stage.workspace.quarantine).add(parcel.quarantined)
    merge_trials(stage, parcel, logs)
    if not stage.job.folder.is_dir():  # the job was deleted meanwhile
        return
    for name, data in parcel.files.items():
        path = stage.workspace.root / name
        if stage.may_write(name) and not _is_later_round(stage, path):
            _publish(path, data)
    for name in parcel.deleted:
        if stage.may_write(name):
            _remove(stage.workspace.root / name)


def merge_trials(stage: StageFiles, parcel: Parcel, logs: Logs) -> None:
    """Append the trials whose candidates are not in the log yet.

    Raises:
        DiskProblem: They could not be written.
    """
    for trials in parcel.trials.values():
        logs(stage.log).add(trials)


def _publish(path: Path, data: bytes) -> None:
    """Publish a file. Libraries need not be durable: their checksums are in the stage file."""
    make_folders(path.parent)
    if path.suffix != _LIBRARY:
        return publish_bytes(path, data)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise disk_problem("write", path, error) from error


def _remove(path: Path) -> None:
    """Delete a file; a library that a power cut brings back is deleted with the folders that have no stage file."""
    if path.suffix == _LIBRARY:
        path.unlink(missing_ok=True)
    else:
        remove(path)


def _is_later_round(stage: StageFiles, path: Path) -> bool:
    """Return whether a file begins a round of the task that has begun already, here or elsewhere."""
    request = stage.request
    if path != stage.job.stage(request.task, request.round + 1):
        return False
    return any(other >= path for other in stage.job.stage_files_of(request.task))
