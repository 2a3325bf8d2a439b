"""The library that the queue has compiled of a job's best schedules: an export takes it while they are the best.

It lies in the folder of the job, with a note of what it was made from and of what a report says of its kernels. So an
export neither reads the model with TVM nor compiles it. A seal binds the note to the library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.errors import DiskProblem, StorageError
from autotune.schema import plain
from autotune.storage import formats, seals
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.trial_index import by_time
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.compiler_digest import compiler_digest

_NOTE = ".note.json"


@dataclass(frozen=True)
class KernelWork:
    """The work of one call of a kernel.

    Attributes:
        task: The name of the task that it is; None if it is in no task.
        gflop: Floating-point operations, in 1e9.
        bytes: The size of all its arguments. Each is read or written at least once.
        rate: How many of its operations the CPU can do in the time of one in float32.
        constants: The bytes of its constants, which others are read between two calls of.
        fixed: Whether it does the same work whatever values it is given. If not, operations and bytes say nothing.
    """

    task: str | None
    gflop: float
    bytes: int
    rate: float = 1.0
    constants: int = 0
    fixed: bool = True

    def streamed(self, cache_bytes: int) -> int:
        """Return the bytes that come from beyond caches of a size: constants, and activations that do not fit."""
        return self.bytes if self.bytes - self.constants > cache_bytes else self.constants


@dataclass(frozen=True)
class ModelFacts:
    """What a report says of a compiled model besides its times.

    Attributes:
        constant_bytes: The size of its constants.
        kernels: The work of each kernel by its name; of one that runs several beside each other, that of each.
        activations: The bytes of its activations; None for a model of which no plan can be made.
    """

    constant_bytes: int
    kernels: dict[str, tuple[KernelWork, ...]]
    activations: dict[str, int] | None


@dataclass(frozen=True)
class ReadyLibrary:
    """What lies beside a library that is ready.

    Attributes:
        made_from: What `made_from` returned before it was compiled.
        facts: What a report says of it.
        library: The digest of its file, in hexadecimal digits.
    """

    FORMAT = ("autotune-ready-library", 1)

    made_from: str
    facts: ModelFacts
    library: str
    seal: str = ""

    @property
    def sealed(self) -> bytes:
        """What is sealed."""
        return json.dumps([self.made_from, plain(self.facts), self.library], sort_keys=True).encode()


def made_from(workspace: Workspace, paths: JobPaths, spec: JobSpec) -> str:
    """Return a digest of what the library of a job for CPUs is made from: its model, its plan, the best of each task.

    Raises:
        StorageError: A tuning log cannot be read.
        OSError: A file of the job cannot be read.
    """
    logs = [TuningLog(workspace.tuning_log(spec.target_key, task.hash).records) for task in spec.tasks]
    best = [[entry.hash for entry in by_time(log.entries())[:1]] for log in logs]
    ingredients = {**without_trials(paths, spec), "best": best}
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True, default=str).encode()).hexdigest()


def without_trials(paths: JobPaths, spec: JobSpec) -> dict[str, Any]:
    """Return what all that is compiled of a job is made from besides its trials: the compiler, the job and its plan.

    Raises:
        OSError: A file of the job cannot be read.
    """
    return {
        "compiler": compiler_digest(),
        "job": formats.to_json(spec),
        "plan": seals.file_digest(paths.plan).hex() if paths.plan.exists() else "",
    }


def has_best(workspace: Workspace, spec: JobSpec, best: Mapping[str, Trial]) -> bool:
    """Return whether trials, by the hash of their task, are the best of each: none was set aside."""
    for task in spec.tasks:
        first = by_time(TuningLog(workspace.tuning_log(spec.target_key, task.hash).records).entries())[:1]
        chosen = best.get(task.hash)
        if [entry.hash for entry in first] != ([chosen.hash] if chosen else []):
            return False
    return True


def note(library: Path, digest: str, facts: ModelFacts) -> None:
    """Write down beside a library what it was made from.

    Raises:
        StorageError: The note cannot be written.
    """
    ready = ReadyLibrary(digest, facts, seals.file_digest(library).hex())
    formats.write(library.with_suffix(_NOTE), replace(ready, seal=seals.seal(seals.READY, ready.sealed)))


def keep(paths: JobPaths, library: Path) -> None:
    """Move a library that has a note to where the exports of a job look for it.

    It is not needed, so nothing is said where it cannot be moved.
    """
    written = library.with_suffix(_NOTE)
    if written.exists():
        with contextlib.suppress(OSError):
            os.replace(library, paths.ready_library)
            os.replace(written, paths.ready_note)


def find(workspace: Workspace, paths: JobPaths, spec: JobSpec) -> ReadyLibrary | None:
    """Return the note of a job's library that is ready; None if none is that is made from what the job has now.

    The library itself is not looked at: `copy` does that.

    Raises:
        StorageError: A tuning log cannot be read.
        OSError: A file of the job cannot be read.
    """
    digest = made_from(workspace, paths, spec)
    with contextlib.suppress(OSError, StorageError):
        ready = formats.read(ReadyLibrary, paths.ready_note)
        is_own = seals.is_sealed(seals.READY, ready.sealed, ready.seal)
        if is_own and ready.made_from == digest and paths.ready_library.exists():
            return ready
    return None


def copy(paths: JobPaths, ready: ReadyLibrary, library: Path) -> bool:
    """Copy the library of a job that is ready, and return whether the copy is what was compiled.

    Args:
        ready: What `find` returned.
        library: The file to write.
    """
    with contextlib.suppress(OSError, DiskProblem):
        shutil.copyfile(paths.ready_library, library)
        return seals.file_digest(library).hex() == ready.library
    return False


def remove(paths: JobPaths) -> int:
    """Remove the library of a job that is ready, and return how many bytes it had.

    Raises:
        OSError: It cannot be removed.
    """
    size = paths.ready_library.stat().st_size if paths.ready_library.exists() else 0
    paths.ready_note.unlink(missing_ok=True)
    paths.ready_library.unlink(missing_ok=True)
    return size
