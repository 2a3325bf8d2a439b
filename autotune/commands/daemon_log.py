"""Print the log of a daemon in the foreground, without control characters that a terminal would obey."""

from __future__ import annotations

import logging
import sys

from autotune.errors import printable


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def to_standard_error() -> None:
    """Send what the daemon logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
