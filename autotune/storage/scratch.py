"""Temporary folders, and what a folder needs for libraries to be loaded from it."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from autotune.errors import MachineProblem, disk_problem
from autotune.storage.trees import discard_tree

_PREFIX = "autotune-scratch-"
_OLD_S = 24 * 3600  # nothing that uses such a folder takes so long


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
