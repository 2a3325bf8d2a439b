"""When a daemon served a workspace: `logs/daemon.jsonl`, a line when one starts and a line when it leaves."""

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
    """A daemon starts. Where the one before was killed, what it last wrote of itself tells until when it lived."""
    record: dict[str, object] = {"event": "started"}
    try:
        _note(workspace, record | {"seen": round(workspace.daemon_info.stat().st_mtime, 3)})
    except FileNotFoundError:
        _note(workspace, record)


def stopped(workspace: Workspace) -> None:
    """The daemon leaves."""
    _note(workspace, {"event": "stopped"})


def _note(workspace: Workspace, record: dict[str, object]) -> None:
    try:
        RecordLog(workspace.uptime, *_FORMAT).append([{"at": round(time.time(), 3), **record}])
    except StorageError as error:
        _LOG.warning("%s", error)


def served(workspace: Workspace) -> list[tuple[float, float]]:
    """The stretches in which a daemon served, in epoch seconds, oldest first; one that has not left ends at infinity.

    Raises:
        StorageError: the file cannot be read.
    """
    found: list[tuple[float, float]] = []
    for record in RecordLog(workspace.uptime, *_FORMAT).read():
        at = float(record["at"])
        still = bool(found) and found[-1][1] == math.inf
        if still:
            found[-1] = (found[-1][0], max(found[-1][0], min(at, float(record.get("seen", at)))))
        if record["event"] == "started":
            found.append((at, math.inf))
    return found
