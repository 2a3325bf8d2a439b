"""Time a fixed piece of work, the sentinel, to see how fast this CPU is at the moment.

A CPU may be slow because of its temperature, because another virtual machine uses the other thread of its core, or
because the memory bus is busy. No counter shows all of these, but each makes the same work take longer.
"""

from __future__ import annotations

import time
import zlib

_DATA = bytes(range(256)) * 1024  # 256 KiB, which fit into the second-level cache
_RUNS = 8


def time_us() -> float:
    """Return the shortest time of several runs of the sentinel, in microseconds. Takes about half a millisecond."""
    best = float("inf")
    for _ in range(_RUNS):
        started = time.perf_counter()
        zlib.crc32(_DATA)
        best = min(best, time.perf_counter() - started)
    return best * 1e6
