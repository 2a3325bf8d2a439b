"""The name and the id of a new job."""

from __future__ import annotations

import re
from pathlib import Path

from autotune.commands.jobs import job_name
from autotune.errors import BadInput, DamagedFile
from autotune.storage import atomic
from autotune.storage.paths import Workspace

_LAST_ID = ("autotune-last-id", 1)
_RESERVED = re.compile(r"all|last|[0-9]+|[0-9]+-[0-9]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(workspace: Workspace, name: str) -> None:
    """Check that a new job may have a name that the user gave.

    Raises:
        BadInput: It is no name for a job, or a job has it already.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(f"--name {name!r}: use up to 64 letters, digits, dots, dashes and underscores")
    if _RESERVED.fullmatch(name):
        raise BadInput(f"--name {name!r} would mean other jobs on a command line; give another")
    if name in _taken(workspace):
        raise BadInput(f"there is a job named {name!r} already; give another --name")


def free_name(workspace: Workspace, model: Path) -> str:
    """Return a name for a job that the user gave none: that of the model's file, with a number if a job has it."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", model.stem).strip("._-")[:48] or "model"
    name = f"model-{plain}" if _RESERVED.fullmatch(plain) else plain
    taken = _taken(workspace)
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free


def next_id(workspace: Workspace) -> int:
    """Return an id that no job of this workspace has ever had. The caller holds the lock of the queue."""
    try:
        last = int(atomic.read_json(workspace.last_id, *_LAST_ID)["id"])
    except (FileNotFoundError, DamagedFile, KeyError, TypeError, ValueError):
        last = 0  # the folders of the jobs have to be enough; the file is written again
    id = 1 + max([last, *(job.id for job in workspace.job_list())])
    atomic.publish_json(workspace.last_id, *_LAST_ID, {"id": id})
    return id


def _taken(workspace: Workspace) -> set[str]:
    return {job_name(job) for job in workspace.job_list()}
