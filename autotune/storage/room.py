"""Whether the disk takes what is written, asked before it matters."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.errors import DiskProblem, disk_problem
from autotune.storage.atomic import make_folders, temporary_name, write_all

_PROBE = 1 << 20


def check_room(*folders: Path) -> None:
    """Write a mebibyte to each folder, durably, and delete it.

    Raises:
        DiskProblem: a folder did not take it.
    """
    for folder in folders:
        probe = folder / temporary_name()
        try:
            try:
                _write(probe)
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise disk_problem("write to", folder, error) from error


def has_room(*folders: Path) -> bool:
    """Whether `check_room` finds nothing."""
    try:
        check_room(*folders)
    except DiskProblem:
        return False
    return True


def _write(probe: Path) -> None:
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, os.urandom(_PROBE))  # a file system that compresses needs as much room as any other
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_trouble(folder: Path) -> str:
    """Why a folder's disk takes nothing, as far as can be seen without writing; empty where it seems to.

    A daemon on a full disk cannot write down that it pauses.
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    if found.f_flag & os.ST_RDONLY:
        return f"the disk of {folder} is read-only; remount it for writing"
    full = found.f_blocks and found.f_bavail * found.f_frsize < _PROBE
    return f"the disk of {folder} is full; free some room" if full else ""


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may enter, if there is none; one that is there is left as it is.

    Raises:
        DiskProblem: it could not be made.
    """
    make_folders(path, 0o700)
