"""The clock that a daemon goes by.

It decides when the daemon acts. What is kept in journals and states is stamped with the machine's own time.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence


class DaemonClock:
    """The time of this machine, and waiting while it passes. A subclass may let time pass without waiting."""

    def time(self) -> float:
        """The wall time in epoch seconds. It may be set back and forth."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment in the past. It never goes back."""
        return time.monotonic()

    def wait(self, descriptors: Sequence[int], timeout_s: float) -> list[int]:
        """Wait until a file descriptor is readable, for `timeout_s` seconds at most.

        Returns:
            The descriptors that are readable; none when the time is over.
        """
        return select.select(descriptors, [], [], timeout_s)[0]
