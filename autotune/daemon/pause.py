"""Why the daemon starts nothing for a while: a full or read-only disk, settings that cannot be read."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

_LOG = logging.getLogger("autotune.daemon")
_FIRST_S = 1.0
_LONGEST_S = 10.0


@dataclass
class Pause:
    """Holds the daemon back, longer each time, until work succeeds again. Says so once, and once when it is over."""

    trouble: str = ""
    _times: int = 0
    _until: float = 0.0

    @property
    def on(self) -> bool:
        """Whether it is too early to try again."""
        return time.monotonic() < self._until

    def begin(self, trouble: str) -> None:
        """Something that is no stage's fault went wrong."""
        if trouble != self.trouble:
            _LOG.error("paused: %s", trouble)
        self.trouble = trouble
        if not self.on:  # what else goes wrong meanwhile says nothing new
            self._until = time.monotonic() + min(_LONGEST_S, _FIRST_S * 2**self._times)
            self._times = min(self._times + 1, 10)

    def end(self) -> None:
        """Work has succeeded."""
        if self.trouble:
            _LOG.info("goes on after: %s", self.trouble)
        self.trouble, self._times = "", 0
