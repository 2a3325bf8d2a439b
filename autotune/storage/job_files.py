"""The files of one job, read with distrust: what is damaged is set aside under a new name, and nothing leads elsewhere.

A job file is data that may have been torn, copied by hand or crafted. What it names becomes part of a path, so every
name is checked here, before anyone uses it.
"""

from __future__ import annotations

import logging
import math
import os
import re
import zlib
from pathlib import Path
from typing import Any

from autotune.errors import DamagedFile, disk_problem
from autotune.reasons import Reason
from autotune.storage import formats
from autotune.storage.atomic import make_folders
from autotune.storage.formats import Candidate, Control, JobSpec, JobState, StageFile
from autotune.storage.paths import JobPaths

_LOG = logging.getLogger("autotune.storage")
_TARGET_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_HASH = re.compile(r"[0-9a-f]{16}")
_CHUNK = 1 << 20


def read_spec(paths: JobPaths) -> JobSpec:
    """What was asked for in a job.

    Raises:
        DamagedFile: it is missing, is not whole, is another job's, or names something outside of the workspace.
        NewerFormat, DiskProblem: it is there and cannot be used.
    """
    try:
        spec = formats.read(JobSpec, paths.spec)
    except FileNotFoundError:
        raise DamagedFile(f"{paths.spec} is missing") from None
    if fault := _spec_fault(paths, spec):
        raise DamagedFile(f"{paths.spec} is damaged: {fault}")
    return spec


def _spec_fault(paths: JobPaths, spec: JobSpec) -> str:
    numbers = (spec.submitted_at, *(task.gflop for task in spec.tasks))
    if f"{spec.id:04}-{spec.name}" != paths.folder.name:
        return f"it is that of job {spec.id} ({spec.name})"
    if spec.target.get("kind") not in ("llvm", "cuda", formats.SIMULATED):
        return f"its target {spec.target.get('kind')!r} is unknown"
    if not _TARGET_KEY.fullmatch(spec.target_key):
        return f"its target's key {spec.target_key!r} is no file name"
    if wrong := [task.hash for task in spec.tasks if not _HASH.fullmatch(task.hash)]:
        return f"the task's hash {wrong[0]!r} is no file name"
    if len(spec.known_at_submit) != len(spec.tasks) or not all(map(math.isfinite, numbers)):
        return "its numbers do not fit together"
    return "its numbers are out of range" if spec.trials < 1 or spec.trials_per_round < 1 else ""


def read_control(paths: JobPaths) -> Control:
    """What the user wants of a job. Where that was lost, it is held: one that was to be held must not start by damage.

    Raises:
        StorageError: it cannot be read, or a newer autotune wrote it.
    """
    try:
        return formats.read(Control, paths.control)
    except (FileNotFoundError, DamagedFile) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = Reason("control-missing" if missing else "control-damaged", detail=str(paths.control))
        return Control("hold", reason=reason)


def read_state(paths: JobPaths) -> JobState:
    """How far a job is. A damaged state is as good as none: it follows from the logs.

    Raises:
        StorageError: it cannot be read, or a newer autotune wrote it.
    """
    try:
        return formats.read(JobState, paths.state)
    except (FileNotFoundError, DamagedFile):
        return JobState()


def read_stage(paths: JobPaths, path: Path, spec: JobSpec) -> StageFile:
    """The stage that a round of a job is at.

    Raises:
        FileNotFoundError: the round has ended.
        DamagedFile: it is not whole, is another round's, or names a library outside of its folder.
        NewerFormat, DiskProblem: it is there and cannot be used.
    """
    file = formats.read(StageFile, path)
    if paths.stage(file.task, file.round) != path or file.task not in spec.tunable:
        raise DamagedFile(f"{path} is damaged: it says task {file.task} round {file.round}")
    if wrong := [item for item in file.candidates if not _is_safe(item)]:
        raise DamagedFile(f"{path} is damaged: {wrong[0].library or wrong[0].hash!r} is no library of this round")
    return file


def _is_safe(candidate: Candidate) -> bool:
    """Whether its library can only be a file in the folder of its round."""
    name = candidate.hash
    plain = bool(name) and os.path.basename(name) == name and not name.startswith(".") and "\0" not in name
    return plain and candidate.library in ("", f"{name}.so")


def set_aside(path: Path) -> Path:
    """Move a damaged file, or what stands in its place, to a new name beside it; returns that. Warns of it.

    Raises:
        DiskProblem: it could not be moved.
    """
    number, aside = 1, path.with_name(f"{path.name}.damaged")
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
    """Make a folder of a job that is missing; something else in its place is set aside.

    Raises:
        DiskProblem: it could not be made.
    """
    if os.path.lexists(path) and not path.is_dir():
        set_aside(path)
    make_folders(path)


def checksum(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file. Raises ``OSError``."""
    size, crc = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc


def check_model(paths: JobPaths, spec: JobSpec) -> None:
    """Make sure that the snapshot is the model that was submitted. Jobs of older versions have no checksum.

    Raises:
        DamagedFile: it is missing or has changed.
    """
    try:
        found: Any = checksum(paths.model)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise disk_problem("read", paths.model, error) from error
    if found is None or (spec.model_size and found != (spec.model_size, spec.model_crc32)):
        what = "is missing" if found is None else "is damaged"
        raise DamagedFile(f"{paths.model} {what}; submit the model again: its trials stay known")
