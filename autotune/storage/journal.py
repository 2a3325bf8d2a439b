"""The journal of a job: what happened to it, one line for each event."""

from __future__ import annotations

import time
from typing import Any

from autotune.storage.paths import JobPaths
from autotune.storage.record_log import RecordLog

FORMAT = ("autotune-journal", 1)


def note(paths: JobPaths, event: str, **details: Any) -> None:
    """Add a line to a job's journal."""
    RecordLog(paths.journal, *FORMAT).append([{"at": round(time.time(), 3), "event": event, **details}])
