"""Print the log of a daemon, without control characters that a terminal would obey.

A daemon in the background has `logs/daemon.log` as its standard error. That file is kept short.
Whoever reads standard error may stop to read, and a full pipe would stop the daemon: lines that find no room in it are
dropped, and how many is said once there is room again.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

from autotune.errors import printable


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Patient(logging.StreamHandler):  # type: ignore[type-arg]  # generic in newer Pythons only
    """Writes to standard error, and drops what would have to wait for the reader of a pipe."""

    _dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not _has_room(self.stream):
            self._dropped += 1
            return
        if self._dropped:
            record.msg = f"{record.getMessage()} ({self._dropped} lines before it were dropped: nobody read them)"
            record.args, self._dropped = (), 0
        super().emit(record)


def _has_room(stream: IO[str]) -> bool:
    """Return whether a line can be written without waiting. A pipe that has any room has some for 4 KiB."""
    try:
        kind = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):  # no file of the system
        return True
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return True
    return bool(select.select([], [stream], [], 0)[1])


class _RotatingStandardError(RotatingFileHandler):
    """Goes on in an empty file when this one is full, with all that the process prints."""

    def doRollover(self) -> None:
        super().doRollover()
        if self.stream is not None:
            for descriptor in (1, 2):
                os.dup2(self.stream.fileno(), descriptor)


def begin(path: Path, most: int) -> None:
    """Send what the daemon logs to standard error.

    Args:
        path: The log of a daemon in the background.
        most: Its largest size in bytes. What was there before is kept as `NAME.1`.
    """
    if _is_standard_error(path):
        handler: logging.Handler = _RotatingStandardError(path, maxBytes=most, backupCount=1)
    else:
        handler = _Patient(sys.stderr)
    handler.setFormatter(_Printable("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _is_standard_error(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(2), os.stat(path))
    except OSError:
        return False
