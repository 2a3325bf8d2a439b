"""Find out who holds the locks of this machine: the kernel lists the process of each lock in `/proc/locks`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import one_line
from autotune.storage.locks import owner_name

ROOT = Path("/")
_COMMAND_LENGTH = 80


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock.

    Attributes:
        pid: The process id.
        user: The name of its user.
        command: The beginning of its command line.
        stopped: Whether it is stopped, as by Ctrl-Z or a debugger.
    """

    pid: int
    user: str
    command: str
    stopped: bool

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} ({self.command}){', which is stopped' if self.stopped else ''}"


def holders(paths: Iterable[Path], root: Path = ROOT) -> list[Holder]:
    """Return who holds these locks, each once. Processes that cannot be seen, as from a container, are left out.

    Args:
        paths: The files of the locks.
        root: The root of the file system; tests give another one.
    """
    pids = _pids(root)
    holding = sorted({pids[key] for path in paths if (key := _key(path)) in pids})
    return [holder for pid in holding if (holder := _holder(pid, root)) is not None]


def _key(path: Path) -> str:
    """Return a file as `/proc/locks` names it: the device and the inode."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"


def _pids(root: Path) -> dict[str, int]:
    """Return the process of each held lock. Lines with `->` are of processes that wait for one."""
    try:
        lines = (root / "proc/locks").read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines if "->" not in line]
    return {line[5]: int(line[4]) for line in fields if len(line) >= 6 and line[1] == "FLOCK" and line[4].isdigit()}


def _holder(pid: int, root: Path) -> Holder | None:
    folder = root / "proc" / str(pid)
    try:
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        user = owner_name(folder.stat().st_uid)
    except (OSError, IndexError):
        return None
    command = one_line(" ".join(words))
    short = command if len(command) <= _COMMAND_LENGTH else f"{command[: _COMMAND_LENGTH - 3]}..."
    return Holder(pid, user, short, state in ("T", "t"))
