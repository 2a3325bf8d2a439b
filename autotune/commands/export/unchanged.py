"""What nothing has changed of since it was exported is not compiled again: the files of that export are the result.

The job remembers where its last export went, a digest of all that it was made from, and those of its files. The note is
sealed: it says what is handed over as a library.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune import devices
from autotune.errors import BadInput, StorageError
from autotune.machine.hardware import allowed_cpus, cpu_model
from autotune.processes.messages import ExportRequest
from autotune.schema import plain
from autotune.storage import formats, seals
from autotune.storage.atomic import TEMPORARY_PREFIX, make_folders, publish_file
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import check_model
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.trial_index import by_time
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.export import ready_library
from autotune.tvm_backend.export.folder import read_report
from autotune.tvm_backend.export.writing.files import SOURCE, move_source, written
from autotune.version import installed_version

_RANKS = 8  # the best trials of a task that an export may take at least
_RUNTIMES = ("onnxruntime", "torch", "ai-edge-litert")  # that verify an export, and that it is compared with


@dataclass(frozen=True)
class WrittenFile:
    """A file that an export wrote: its path in the folder, and its digest."""

    name: str
    digest: str

    def is_at(self, path: Path) -> bool:
        """Return whether a file is what was written. Raises OSError where it cannot be read."""
        return seals.file_digest(path).hex() == self.digest


@dataclass(frozen=True)
class LastExport:
    """The last export of a job.

    Attributes:
        made_from: The digest of all that it was made from.
        folder: The absolute path of what it wrote.
        files: Its files, in the order in which they are published.
    """

    FORMAT = ("autotune-last-export", 1)

    made_from: str
    folder: str
    files: tuple[WrittenFile, ...]
    seal: str = ""

    @property
    def sealed(self) -> bytes:
        """What is sealed."""
        return json.dumps([self.made_from, self.folder, plain(self.files)]).encode()


def made_from(workspace: Workspace, paths: JobPaths, spec: JobSpec, request: ExportRequest) -> str:
    """Return a digest of all that an export is made from: empty where only a new one can tell what it would be.

    Raises:
        DamagedFile: The job's copy of the model is not what was submitted.
        StorageError: A tuning log or a file of the job cannot be read.
    """
    if not devices.kind_of(spec).is_local_cpu:
        return ""
    check_model(paths, spec)
    asked = replace(request, workspace="", job="", output="", cpus=(), measure_cpus=(), lock_folder="", kept_bytes=0)
    ingredients = {
        **ready_library.without_trials(paths, spec),
        "compared with": [installed_version(package) for package in _RUNTIMES],
        "machine": [cpu_model(), len(allowed_cpus())],
        "request": plain(asked),
        "inputs": [seals.file_digest(file).hex() for file in request.inputs],
        "trials": _best(workspace, spec, max(_RANKS, request.contenders)),
    }
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True, default=str).encode()).hexdigest()


def _best(workspace: Workspace, spec: JobSpec, most: int) -> list[list[tuple[str, float | None]]]:
    logs = [TuningLog(workspace.tuning_log(spec.target_key, task.hash).records) for task in spec.tasks]
    return [[(entry.hash, entry.median_us) for entry in by_time(log.entries())[:most]] for log in logs]


def remember(paths: JobPaths, digest: str, output: Path) -> None:
    """Write down what was exported, unless the digest is empty.

    Args:
        digest: What `made_from` returned before.
        output: The folder that was written.

    Raises:
        StorageError: It cannot be written down.
        OSError: What was written cannot be read.
    """
    if digest:
        folder = output.resolve()
        names = written(folder, read_report(folder))
        files = tuple(WrittenFile(name, seals.file_digest(folder / name).hex()) for name in names)
        last = LastExport(digest, str(folder), files)
        formats.write(paths.last_export, replace(last, seal=seals.seal(seals.EXPORT, last.sealed)))


def again(paths: JobPaths, digest: str, output: Path) -> dict[str, Any] | None:
    """Write what the last export of a job wrote, if it was made from the same, and its files are as it wrote them.

    Args:
        digest: What `made_from` returned now.
        output: The folder to write to, which is there; it may be that of the last export.

    Returns:
        The report; None if it has to be exported anew, as where a file could not be written: an export says why.
    """
    with suppress(OSError, StorageError, BadInput):
        last = formats.read(LastExport, paths.last_export)
        if digest and last.made_from == digest and seals.is_sealed(seals.EXPORT, last.sealed, last.seal):
            return _written_again(last, output)
    return None


def _written_again(last: LastExport, output: Path) -> dict[str, Any] | None:
    folder = Path(last.folder)
    report = read_report(folder)
    if folder == output.resolve():
        return report if all(file.is_at(folder / file.name) for file in last.files) else None
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=output) as copies:
        for file in last.files:
            copy = Path(copies, file.name)
            make_folders(copy.parent)
            shutil.copyfile(folder / file.name, copy)
            if not file.is_at(copy):
                return None
        if Path(copies, SOURCE).exists():
            move_source(Path(copies, SOURCE), output / SOURCE)
        for name in (file.name for file in last.files if Path(copies, file.name).exists()):
            make_folders((output / name).parent)
            publish_file(Path(copies, name), output / name)
    return report
