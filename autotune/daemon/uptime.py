"""When daemons served a workspace: `logs/daemon.jsonl` has a line for each start and for each stop."""

from __future__ import annotations

import logging
import math
import time

from autotune.errors import StorageError
from autotune.storage.paths import Workspace
from autotune.storage.record_log import RecordLog

_LOG = logging.getLogger("autotune.daemon")
_FORMAT = ("autotune-attendance", 1)


def started(workspace: Workspace) -> None:
    """Note that a daemon starts, and when the one before, if it was killed, last wrote its status file."""
    record: dict[str, object] = {"event": "started"}
    try:
        _note(workspace, record | {"seen": round(workspace.daemon_info.stat().st_mtime, 3)})
    except FileNotFoundError:
        _note(workspace, record)


def stopped(workspace: Workspace) -> None:
    """Note that the daemon stops."""
    _note(workspace, {"event": "stopped"})


def _note(workspace: Workspace, record: dict[str, object]) -> None:
    try:
        RecordLog(workspace.uptime, *_FORMAT).append([{"at": round(time.time(), 3), **record}])
    except StorageError as error:
        _LOG.warning("%s", error)


def served(workspace: Workspace) -> list[tuple[float, float]]:
    """Return when daemons served, as pairs of epoch seconds, oldest first. If one has not stopped, its end is infinity.

    Raises:
        StorageError: The file cannot be read.
    """
    periods: list[tuple[float, float]] = []
    for record in RecordLog(workspace.uptime, *_FORMAT).read():
        at = float(record["at"])
        serving = bool(periods) and periods[-1][1] == math.inf
        if serving:
            periods[-1] = (periods[-1][0], max(periods[-1][0], min(at, float(record.get("seen", at)))))
        if record["event"] == "started":
            periods.append((at, math.inf))
    return periods
