"""The clock that a daemon goes by, and the pauses that it makes.

The clock decides when the daemon acts. What is kept in journals and states is stamped with the machine's own time.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_LOG = logging.getLogger("autotune.daemon")
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 10.0


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


@dataclass
class Pause:
    """Keeps a daemon from starting stages that cannot work: the disk is full, or the settings cannot be read.

    Each pause is longer than the one before, until a stage succeeds. The log tells of the first and of the end.

    Attributes:
        trouble: Why no stage can work; empty if nothing is known to be wrong.
    """

    clock: DaemonClock = field(default_factory=DaemonClock)
    trouble: str = ""
    _times: int = 0
    _until: float = 0.0

    @property
    def on(self) -> bool:
        """Whether it is too early to start a stage again."""
        return self.clock.monotonic() < self._until

    def begin(self, trouble: str) -> None:
        """Begin a pause, because of something that is no stage's fault. A pause that is on is not made longer."""
        if trouble != self.trouble:
            _LOG.error("paused: %s", trouble)
        self.trouble = trouble
        if not self.on:
            self._until = self.clock.monotonic() + min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2**self._times)
            self._times = min(self._times + 1, 10)

    def end(self) -> bool:
        """Take the trouble as over, because work has succeeded. Returns whether there was any."""
        ended = self.trouble
        if ended:
            _LOG.info("goes on after: %s", ended)
        self.trouble = ""
        self._times = 0
        return bool(ended)
