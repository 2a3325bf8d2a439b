"""Room to write in: whether a disk has any, what is this user's only, and temporary folders."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from autotune.errors import DiskProblem, MachineProblem, disk_problem
from autotune.ownership import is_trusted_owner, opening, owner_name
from autotune.storage.atomic import make_folders, temporary_name, write_new
from autotune.storage.trees import discard_tree

_PROBE_BYTES = 1 << 20
_PREFIX = "autotune-scratch-"
_OLD_S = 24 * 3600  # nothing that uses such a folder takes so long


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


def check_executable(*folders: Path) -> None:
    """Check that libraries can be loaded from folders.

    Raises:
        MachineProblem: A folder is on a disk that is mounted with `noexec`.
    """
    for folder in folders:
        with suppress(OSError):  # what needs the folder says what is wrong with it
            if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
                raise MachineProblem(
                    f"no library can be loaded from {folder}, whose disk is mounted noexec; mount it without, or move"
                    " the workspace or TMPDIR elsewhere"
                )


def temporary_folder() -> Path:
    """Return the folder for temporary files. It can be written to, and libraries can be loaded from it.

    Raises:
        MachineProblem: There is no such folder.
        DiskProblem: Its disk is full.
    """
    tempfile.tempdir = None  # what a process found at its start may be gone by now
    wanted = Path(os.environ.get("TMPDIR") or "/tmp")
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        problem = disk_problem("write to", wanted, error)
        if problem.passing:
            raise problem from error
        raise MachineProblem(
            f"no usable temporary folder ({error.strerror or error}); make {wanted} writable, or set TMPDIR to a"
            " folder that is"
        ) from error
    check_executable(folder)
    return folder


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


class _ScratchFolder(tempfile.TemporaryDirectory[str]):
    def cleanup(self) -> None:
        """Delete it, with whatever a command of the user's has made in it."""
        discard_tree(Path(self.name))
        super().cleanup()


def scratch_folder(purpose: str, parent: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder. It is removed when its context ends.

    Args:
        purpose: A word that becomes part of its name.
        parent: Where to make it; by default where temporary files are.

    Raises:
        OSError: It cannot be made.
    """
    return _ScratchFolder(prefix=f"{_PREFIX}{purpose}-", dir=parent, ignore_cleanup_errors=True)


def remove_old_scratch() -> list[Path]:
    """Delete the temporary folders of this user that have not changed for a day, and return their paths."""
    removed = []
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_old(entry) and discard_tree(Path(entry.path)):
                removed.append(Path(entry.path))
    return removed


def _is_old(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        is_ours = entry.is_dir(follow_symlinks=False) and status.st_uid == os.geteuid()
        return is_ours and time.time() - status.st_mtime > _OLD_S
    return False
