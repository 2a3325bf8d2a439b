"""Tell from its time of change whether a folder may have changed since it was last read."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

# A file system may give two changes the same time: what changed this recently is read again.
_COARSE_S = 2.0
# Some file systems tell others late, or never: read again after so long in any case.
_AT_LEAST_EVERY_S = 10.0


def nudge(folder: Path) -> None:
    """Tell who watches a folder that something in it has changed; who may not finds out a few seconds later."""
    with suppress(OSError):
        os.utime(folder)


class FolderWatch:
    """Watches which entries a folder has. Of a change deeper in it, only `nudge` tells."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._seen: tuple[int, int] | None = None
        self._again_at = 0.0

    def changed(self) -> bool:
        """Whether to read the folder now. A folder that is gone has changed."""
        try:
            status = os.stat(self._folder)
        except OSError:
            self._seen = None
            return True
        seen = (status.st_mtime_ns, status.st_ino)
        now = time.monotonic()
        if seen == self._seen and now < self._again_at:
            return False
        recent = time.time() - status.st_mtime < _COARSE_S
        self._seen = seen
        self._again_at = now + (0.0 if recent else _AT_LEAST_EVERY_S)
        return True
