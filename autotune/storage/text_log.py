"""Text for people that processes write to standard error: of each such file no more is kept than it may have."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from autotune.errors import DiskProblem
from autotune.storage.atomic import publish_bytes


def earlier(path: Path) -> Path:
    """Return where the text goes that was in a file before it was begun anew."""
    return path.with_name(path.name + ".1")


def shorten(path: Path, most: int) -> None:
    """Move the text of a file to `NAME.1` once it has more than `most` bytes; of more than that, the end.

    Who has the file open for appending goes on in it. What is written in that moment may be lost. An error is ignored.

    Args:
        path: The file, of which there may be none.
        most: How many bytes it may have.
    """
    with suppress(OSError, DiskProblem):
        size = os.stat(path).st_size
        if size <= most:
            return
        with open(path, "rb") as file:
            file.seek(size - most)
            publish_bytes(earlier(path), file.read(most))
        os.truncate(path, 0)
