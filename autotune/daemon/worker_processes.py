"""The processes of a workspace, as `/proc` shows them; none are found where there is no `/proc`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from autotune.storage.daemon_info import running_daemon
from autotune.storage.paths import Workspace

_PROC = Path("/proc")
_WORKER = "autotune.workers.worker"


def workers(workspace: Workspace) -> set[int]:
    """Process ids of the workers of this workspace and of what they have forked; zombies do not count."""
    return {pid for pid, words in _commands() if _WORKER in words and _serves(pid, words, workspace)}


def strays(workspace: Workspace) -> list[int]:
    """Workers, and their children, that do not descend from the daemon that serves the workspace now."""
    daemon = running_daemon(workspace)
    above = -1 if daemon is None else int(daemon.identity["pid"])
    return sorted(pid for pid in workers(workspace) if above not in _ancestors(pid))


def parent(pid: int) -> int:
    """The process that forked it; 0 for one that is gone."""
    return _stat(pid)[1]


def _commands() -> Iterator[tuple[int, list[str]]]:
    if not _PROC.is_dir():
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if _stat(int(entry.name))[0] not in ("", "Z", "X"):
                yield int(entry.name), words


def _serves(pid: int, words: list[str], workspace: Workspace) -> bool:
    """Whether its `--workspace` is this one; what it names may be relative to where the process runs."""
    try:
        named = words[words.index("--workspace") + 1]
        return (_PROC / str(pid) / "cwd").resolve().joinpath(named).resolve() == workspace.root.resolve()
    except (ValueError, IndexError, OSError):
        return False


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = _stat(pid)[1]
        yield pid


def _stat(pid: int) -> tuple[str, int]:
    """The letter of the state, and the parent; an empty one and 0 for a process that is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return fields[0], int(fields[1])
    except (OSError, IndexError, ValueError):
        return "", 0
