"""Which daemon serves a workspace, by the file that it keeps, and when daemons did, by `logs/daemon.jsonl`.

The latter has a line for each start and for each stop.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

from autotune.errors import AutotuneError, StorageError
from autotune.storage import formats
from autotune.storage.daemon_formats import DaemonInfo
from autotune.storage.identity import Identity
from autotune.storage.paths import Workspace
from autotune.storage.record_log import RecordLog
from autotune.storage.room import disk_trouble

_LOG = logging.getLogger("autotune.daemon")
_UPTIME = ("autotune-attendance", 1)


def running_daemon(workspace: Workspace) -> DaemonInfo | None:
    """The daemon that serves this workspace now, if one does."""
    try:
        info = formats.read(DaemonInfo, workspace.daemon_info)
        if not Identity.from_json(info.identity).alive():
            return None
        return info if info.trouble else replace(info, trouble=disk_trouble(workspace.jobs))
    except (FileNotFoundError, AutotuneError):
        return None


def holder(workspace: Workspace) -> str:
    """Who serves a workspace, as far as its file says: ` (pid 7 on host)`, or nothing."""
    try:
        identity = formats.read(DaemonInfo, workspace.daemon_info).identity
        return f" (pid {identity['pid']} on {identity['host']})"
    except (FileNotFoundError, AutotuneError, KeyError):
        return ""


def note_start(workspace: Workspace) -> None:
    """Note that a daemon starts, and when the one before, if it was killed, last wrote its status file."""
    record: dict[str, object] = {"event": "started"}
    try:
        _note(workspace, record | {"seen": round(workspace.daemon_info.stat().st_mtime, 3)})
    except FileNotFoundError:
        _note(workspace, record)


def note_stop(workspace: Workspace) -> None:
    """Note that the daemon stops."""
    _note(workspace, {"event": "stopped"})


def _note(workspace: Workspace, record: dict[str, object]) -> None:
    try:
        RecordLog(workspace.uptime, *_UPTIME).append([{"at": round(time.time(), 3), **record}])
    except StorageError as error:
        _LOG.warning("%s", error)


def times_served(workspace: Workspace) -> list[tuple[float, float]]:
    """Return when daemons served, as pairs of epoch seconds, oldest first. If one has not stopped, its end is infinity.

    Raises:
        StorageError: The file cannot be read.
    """
    periods: list[tuple[float, float]] = []
    for record in RecordLog(workspace.uptime, *_UPTIME).read():
        noted_at = float(record["at"])
        if periods and periods[-1][1] == math.inf:  # which has stopped, or was killed and last seen some time before
            started_at, _ = periods.pop()
            ended_at = min(noted_at, float(record.get("seen", noted_at)))
            periods.append((started_at, max(started_at, ended_at)))
        if record["event"] == "started":
            periods.append((noted_at, math.inf))
    return periods
