"""What reading an input may cost: seconds of a CPU, and memory above what the process had before."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

_MAX_S = 2.0
_MAX_MB = 200


class Bounds:
    """Measures what one input after another costs. Memory is that of all inputs together, so that none has more."""

    def __init__(self) -> None:
        self._before_kb = self._peak_kb()

    @staticmethod
    def _peak_kb() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def outcome(self, read: Callable[[], str]) -> str:
        """Return what became of an input, or by how much it went beyond a bound."""
        begin = time.process_time()
        outcome = read()
        taken_s = time.process_time() - begin
        grown_mb = (self._peak_kb() - self._before_kb) >> 10
        if taken_s > _MAX_S:
            return f"slow: {taken_s:.1f} s, {outcome}"
        return outcome if grown_mb <= _MAX_MB else f"large: {grown_mb} MB, {outcome}"
