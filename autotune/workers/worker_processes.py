"""The worker processes of a workspace, found by their command lines.

`check` looks for them. The daemon knows its own workers without.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from autotune.storage.daemon_info import running_daemon
from autotune.storage.paths import Workspace

_WORKER = "autotune.workers.worker"


def workers(workspace: Workspace) -> set[int]:
    """Return the process ids of the workers of this workspace and of what they have forked, zombies excepted."""
    return {process.pid for process in psutil.process_iter() if _serves(process, workspace)}


def strays(workspace: Workspace) -> list[int]:
    """Return the workers, and their children, that do not descend from the daemon that serves the workspace now."""
    daemon = running_daemon(workspace)
    above = -1 if daemon is None else int(daemon.identity["pid"])
    return sorted(pid for pid in workers(workspace) if above not in _ancestors(pid))


def parent(pid: int) -> int:
    """Return the process that forked this one; 0 for one that is gone."""
    try:
        return int(psutil.Process(pid).ppid())
    except psutil.Error:
        return 0


def _serves(process: psutil.Process, workspace: Workspace) -> bool:
    """Whether it is a worker of this workspace. What `--workspace` names may be relative to where the process runs."""
    try:
        words = process.cmdline()
        if _WORKER not in words or process.status() == psutil.STATUS_ZOMBIE:
            return False
        named = words[words.index("--workspace") + 1]
        return Path(process.cwd(), named).resolve() == workspace.root.resolve()
    except (psutil.Error, OSError, ValueError, IndexError):  # it is gone, hidden from us, or no worker
        return False


def _ancestors(pid: int) -> set[int]:
    try:
        return {process.pid for process in psutil.Process(pid).parents()}
    except psutil.Error:
        return set()
