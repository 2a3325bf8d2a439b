"""Waiting for what another process does: as long as it takes, and a failure where it never happens."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(holds: Callable[[], object], limit_s: float = 120.0, said: Callable[[], object] = lambda: "") -> None:
    """Wait until something holds; fail after so many seconds, with what `said` returns then."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not happen within {limit_s:g} s\n{said()}"
        time.sleep(0.02)
