"""Read the files of a job without trusting them.

A job file may be damaged, copied by hand or made to do harm. Names in it become parts of paths, so they are checked
here before anything uses them. Damaged files can be moved aside under a new name.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from autotune.errors import DamagedFile, DiskProblem, disk_problem
from autotune.network_plan import plan
from autotune.network_plan.plan import NOTHING, Plan
from autotune.ownership import owner_name
from autotune.reasons import Reason
from autotune.regular_file import open_regular
from autotune.settings import TARGET_KINDS
from autotune.storage import formats, locks
from autotune.storage.atomic import sync_folder
from autotune.storage.formats import Candidate, Control, JobSpec, JobState, StageFile, TaskSpec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.seals import JOB, is_sealed, seal

_LOG = logging.getLogger("autotune.storage")
_TARGET_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_HASH = re.compile(r"[0-9a-f]{16}")
_CHUNK = 1 << 20


def read_spec(paths: JobPaths) -> JobSpec:
    """Read what was submitted as a job.

    Raises:
        DamagedFile: The file is missing, not whole, or another job's, or names something outside the workspace.
        NewerFormat: A newer autotune wrote it.
        DiskProblem: It cannot be read.
    """
    try:
        spec = formats.read(JobSpec, paths.spec)
    except FileNotFoundError:
        raise DamagedFile(f"{paths.spec} is missing") from None
    if fault := _spec_fault(paths, spec):
        raise DamagedFile(f"{paths.spec} is damaged: {fault}")
    return spec


def read_plan(paths: JobPaths) -> Plan:
    """Read the plan that a job was submitted with; it leaves all to the rules if there was none.

    Raises:
        ConfigError: The file is not a plan.
        DiskProblem: It cannot be read.
    """
    return plan.read(paths.plan) if paths.plan.exists() else NOTHING


def check_owner(paths: JobPaths) -> None:
    """Check that a job's folder is this user's: nobody else can plant links in it that lead elsewhere.

    Raises:
        DiskProblem: It is not.
    """
    try:
        uid = os.lstat(paths.folder).st_uid
    except OSError as error:
        raise disk_problem("use", paths.folder, error) from error
    if uid != os.geteuid():
        owner = owner_name(uid)
        raise DiskProblem(f"{paths.folder} belongs to {owner}, whose job only their own daemon may serve; move it away")


def _spec_fault(paths: JobPaths, spec: JobSpec) -> str:
    numbers = (spec.submitted_at, *(task.gflop for task in spec.tasks))
    if f"{spec.id:04}-{spec.name}" != paths.folder.name:
        return f"it is that of job {spec.id} ({spec.name})"
    if spec.target.get("kind") not in TARGET_KINDS:
        return f"its target {spec.target.get('kind')!r} is unknown"
    if not _TARGET_KEY.fullmatch(spec.target_key):
        return f"its target's key {spec.target_key!r} is no file name"
    if wrong := [task.hash for task in spec.tasks if not _HASH.fullmatch(task.hash)]:
        return f"the task's hash {wrong[0]!r} is no file name"
    counts = {len(spec.known_at_submit), *(len(entry.weights) for entry in spec.entries)}
    if counts != {len(spec.tasks)} or not all(map(math.isfinite, numbers)):
        return "its numbers do not fit together"
    return ""


def read_control(paths: JobPaths) -> Control:
    """Read what the user wants of a job.

    If the file is missing or damaged, the job counts as held: a job that the user had held must not start.

    Raises:
        StorageError: The file cannot be read, or a newer autotune wrote it.
    """
    try:
        return formats.read(Control, paths.control)
    except (FileNotFoundError, DamagedFile) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = Reason("control-missing" if missing else "control-damaged", detail=str(paths.control))
        return Control("hold", reason=reason)


def read_state(paths: JobPaths) -> JobState:
    """Read the progress of a job. A missing or damaged file reads as no progress: the daemon derives it from the logs.

    Raises:
        StorageError: The file cannot be read, or a newer autotune wrote it.
    """
    try:
        return formats.read(JobState, paths.state)
    except (FileNotFoundError, DamagedFile):
        return JobState()


def read_stage(paths: JobPaths, path: Path, spec: JobSpec) -> StageFile:
    """Read the current stage of a round.

    Args:
        spec: What was submitted.

    Raises:
        FileNotFoundError: The round has ended.
        DamagedFile: The file is not whole, or another round's, or names a library outside its folder.
        NewerFormat: A newer autotune wrote it.
        DiskProblem: It cannot be read.
    """
    file = formats.read(StageFile, path)
    if paths.stage(file.task, file.round) != path or file.task not in spec.tunable:
        raise DamagedFile(f"{path} is damaged: it says task {file.task} round {file.round}")
    if unsafe := [item for item in file.candidates if not _is_safe(item)]:
        raise DamagedFile(f"{path} is damaged: {unsafe[0].library or unsafe[0].hash!r} is no library of this round")
    return file


def _is_safe(candidate: Candidate) -> bool:
    """Return whether the candidate's library can only be a file in the folder of its round."""
    name = candidate.hash
    plain = bool(name) and os.path.basename(name) == name and not name.startswith(".") and "\0" not in name
    return plain and candidate.library in ("", f"{name}.so", name)


def orphaned_artifacts(paths: JobPaths) -> list[Path]:
    """Return the folders of libraries whose stage file is gone."""
    if os.path.islink(paths.artifacts):  # to folders of somebody else, which nobody may delete
        return []
    folders = sorted(paths.artifacts.glob("*"))
    return [folder for folder in folders if not (paths.stages / f"{folder.name}.json").exists()]


def set_aside(path: Path) -> Path:
    """Rename a damaged file, or a folder in its place, to `NAME.damaged`, and log a warning.

    Returns:
        The new path.

    Raises:
        DiskProblem: It could not be renamed.
    """
    number = 1
    aside = path.with_name(f"{path.name}.damaged")
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    try:
        os.rename(path, aside)
    except OSError as error:
        raise disk_problem("set aside", path, error) from error
    _LOG.warning("%s is damaged: set aside as %s", path, aside.name)
    return aside


def make_folder(path: Path) -> None:
    """Create a missing folder of a job. A file or a link in its place is set aside.

    The folder above it is not made: it would be that of a job that `clean` has removed.

    Raises:
        DiskProblem: The folder could not be made.
    """
    if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
        set_aside(path)
    try:
        if not path.is_dir():
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)
    except OSError as error:
        raise disk_problem("make", path, error) from error


def checksum(path: Path, crc: int = 0) -> tuple[int, int]:
    """Return the size of a file in bytes, and its CRC-32, which goes on from `crc`.

    Raises:
        OSError: The file cannot be read.
    """
    size = 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return size, crc


def model_checksum(paths: JobPaths) -> tuple[int, int]:
    """Return the size in bytes of the job's copy of the model, weights included, and its CRC-32.

    Raises:
        OSError: A file of it cannot be read.
    """
    size, crc = checksum(paths.snapshot)
    if paths.weights_of(paths.model).exists():
        more, crc = checksum(paths.weights_of(paths.model), crc)
        size += more
    return size, crc


def check_model(paths: JobPaths, spec: JobSpec) -> None:
    """Check that the job's copy of the model is what was submitted.

    Raises:
        DamagedFile: The copy is missing or has changed.
        DiskProblem: It cannot be read.
    """
    try:
        current: Any = model_checksum(paths)
    except FileNotFoundError:
        current = None
    except OSError as error:
        raise disk_problem("read", paths.snapshot, error) from error
    if current is None or (spec.model_size and current != (spec.model_size, spec.model_crc32)):
        what = "is missing" if current is None else "is damaged"
        raise DamagedFile(f"{paths.snapshot} {what}; submit the model again: its trials stay known")


def seal_of(on_end: str | None, tasks: Sequence[TaskSpec]) -> str:
    """Return the seal of what is run of a job as it stands: its `--on-end` command, and the commands of a space.

    The hash of a space, its only task, covers its commands and their files.

    Raises:
        DiskProblem: There is no place for the key.
    """
    return seal(JOB, _sealed(on_end, tasks))


def is_own(spec: JobSpec) -> bool:
    """Return whether this user's autotune wrote the commands of a job, as it did not in a copied workspace."""
    return is_sealed(JOB, _sealed(spec.on_end, spec.tasks), spec.seal)


def _sealed(on_end: str | None, tasks: Sequence[TaskSpec]) -> bytes:
    return json.dumps([on_end, [task.hash for task in tasks]]).encode()


@contextmanager
def in_use(workspace: Workspace, paths: JobPaths) -> Iterator[None]:
    """Keep a job from being removed during a `with` block. Any number of processes may use one job.

    Where nothing can be written, as in the workspace of somebody else, the job is not kept.
    """
    path = paths.use(f"{os.getpid()}-{uuid4().hex[:8]}")
    lease = None
    with suppress(DiskProblem), locks.exclusive(workspace.queue_lock):
        lease = locks.try_lock(path)
    try:
        yield
    finally:
        if lease is not None:
            path.unlink(missing_ok=True)
            lease.release()


def is_in_use(paths: JobPaths) -> bool:
    """Return whether a process uses a job. Call it under the queue lock, so that none begins to meanwhile."""
    return any(locks.try_lock(path) is None for path in paths.folder.glob(paths.use("*").name))
