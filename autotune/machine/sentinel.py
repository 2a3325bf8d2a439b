"""A fixed piece of work whose time tells how fast this CPU is just now, whatever slows it down.

A clock that falls with the heat, a hyper-thread that belongs to somebody else's virtual machine, a memory bus that is
busy: no counter shows them all, and each makes the same work take longer.
"""

from __future__ import annotations

import time
import zlib

_DATA = bytes(range(256)) * 1024  # a quarter of a mebibyte: it stays in the second-level cache
_RUNS = 8


def time_us() -> float:
    """Microseconds that one run takes, the least of several; about half a millisecond in all."""
    best = float("inf")
    for _ in range(_RUNS):
        started = time.perf_counter()
        zlib.crc32(_DATA)
        best = min(best, time.perf_counter() - started)
    return best * 1e6
