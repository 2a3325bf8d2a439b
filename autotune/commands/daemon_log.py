"""Print the log of a daemon, without control characters that a terminal would obey.

A daemon in the background has `logs/daemon.log` as its standard error. That file is kept short.
"""

from __future__ import annotations

import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from autotune.errors import printable


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


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
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _is_standard_error(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(2), os.stat(path))
    except OSError:
        return False
