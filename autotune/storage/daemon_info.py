"""Which daemon serves a workspace, read from the file that it keeps."""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import AutotuneError
from autotune.storage import formats
from autotune.storage.daemon_formats import DaemonInfo
from autotune.storage.identity import Identity
from autotune.storage.paths import Workspace
from autotune.storage.room import disk_trouble


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
