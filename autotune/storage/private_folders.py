"""Folders into which only this user can put anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from autotune.errors import DiskProblem, disk_problem
from autotune.ownership import is_trusted_owner, opening, owner_name
from autotune.storage.atomic import make_folders


def private_folder(path: Path) -> None:
    """Create a folder that only its owner may enter. One that is there is left as it is, and checked.

    Raises:
        DiskProblem: It could not be made, or somebody else can put things into it.
    """
    make_folders(path, 0o700)
    check_ours(path)


def check_ours(folder: Path) -> None:
    """Check that only this user can put anything into a folder: files in it are written, run and deleted by name.

    Raises:
        DiskProblem: Somebody else can, or it is or has a link that somebody else has made.
    """
    try:
        fault = _link_fault(folder, os.lstat(folder)) or _folder_fault(folder)
        with os.scandir(folder) as entries:
            links = [entry for entry in entries if entry.is_symlink()]
        for entry in links:
            fault = fault or _link_fault(Path(entry.path), entry.stat(follow_symlinks=False))
    except OSError as error:
        raise disk_problem("use", error.filename or folder, error) from error
    if fault:
        raise DiskProblem(fault)


def _link_fault(path: Path, status: os.stat_result) -> str:
    if not stat.S_ISLNK(status.st_mode) or is_trusted_owner(status.st_uid):
        return ""
    return f"{path} is a link that {owner_name(status.st_uid)} has made, and leads anywhere; remove it"


def _folder_fault(folder: Path) -> str:
    status = os.stat(folder)
    if status.st_uid == os.geteuid():
        return opening(folder, status, but_own_group=True)
    owner = owner_name(status.st_uid)
    return f"{folder} belongs to {owner}, who can put anything into it; give another --workspace"


def distrust(path: Path) -> str:
    """Return why what stands in a file or folder may not be this user's; empty if it can only be.

    Raises:
        OSError: It is not there.
    """
    status = os.lstat(path)
    if status.st_uid != os.geteuid():
        return f"{path} belongs to another user than the daemon's"
    return opening(path, status)
