"""Temporary folders outside of the workspace, which a killed process leaves behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX = "autotune-scratch-"
_OLD_S = 24 * 3600  # nothing that uses such a folder takes so long


def scratch_folder(purpose: str, parent: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder. It is removed when its context ends.

    Args:
        purpose: A word that becomes part of its name.
        parent: Where to make it; by default where temporary files are.

    Raises:
        OSError: It cannot be made.
    """
    return tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{purpose}-", dir=parent)


def remove_old_scratch() -> list[Path]:
    """Delete the temporary folders of this user that have not changed for a day, and return their paths."""
    removed = []
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_old(entry):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(Path(entry.path))
    return removed


def _is_old(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        is_ours = entry.is_dir(follow_symlinks=False) and status.st_uid == os.geteuid()
        return is_ours and time.time() - status.st_mtime > _OLD_S
    return False
