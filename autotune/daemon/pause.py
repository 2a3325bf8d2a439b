"""The pause of a daemon that cannot work: the disk is full or read-only, or the settings cannot be read."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from autotune.daemon.changes import Changes
from autotune.daemon.clock import DaemonClock

_LOG = logging.getLogger("autotune.daemon")
_FIRST_S = 1.0
_LONGEST_S = 10.0


@dataclass
class Pause:
    """Keeps the daemon from starting stages, longer each time, until one succeeds. `trouble` says why.

    The log tells of its begin and of its end, each once.
    """

    changes: Changes = field(default_factory=Changes)
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
            self._until = self.clock.monotonic() + min(_LONGEST_S, _FIRST_S * 2**self._times)
            self._times = min(self._times + 1, 10)
        self.changes.note()

    def end(self) -> None:
        """End the pause, because work has succeeded."""
        if self.trouble:
            _LOG.info("goes on after: %s", self.trouble)
            self.changes.note()
        self.trouble, self._times = "", 0
