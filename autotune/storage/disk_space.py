"""Whether a disk has room to write in."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.errors import DiskProblem, disk_problem
from autotune.storage.atomic import temporary_name, write_new

_PROBE_BYTES = 1 << 20


def check_room(*folders: Path) -> None:
    """Write one mebibyte to each folder, sync it to disk, and delete it.

    Raises:
        DiskProblem: A folder could not be written to.
    """
    for folder in folders:
        probe = folder / temporary_name()
        try:
            try:
                write_new(probe, os.urandom(_PROBE_BYTES))  # random, so that no file system can compress it
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise disk_problem("write to", folder, error) from error


def has_room(*folders: Path) -> bool:
    """Return whether all folders pass `check_room`."""
    try:
        check_room(*folders)
    except DiskProblem:
        return False
    return True


def stops_everything(problem: DiskProblem, *folders: Path) -> bool:
    """Return whether a problem keeps all work from going on, and not only that of one job with its own files.

    Args:
        folders: The folders in which all work needs to write.
    """
    return (problem.passing and not problem.perhaps_local) or not has_room(*folders)


def disk_trouble(folder: Path) -> str:
    """Say why nothing can be written to a folder's disk, without writing to it.

    The command `status` uses it: a daemon on a full disk cannot write down why it pauses.

    Returns:
        One line for the user; empty if the disk seems to have room.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        return ""
    if disk.f_flag & os.ST_RDONLY:
        return f"the disk of {folder} is read-only; remount it for writing"
    full = disk.f_blocks and disk.f_bavail * disk.f_frsize < _PROBE_BYTES
    return f"the disk of {folder} is full; free some space" if full else ""
