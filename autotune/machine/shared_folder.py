"""Whether a folder that all processes of this machine are to share is really the same folder for all of them.

A container, and a systemd service with PrivateTmp, has a /tmp of its own. Locks in it exclude nobody outside: two
daemons then measure on the same CPUs at once and spoil each other's times, and nothing says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from autotune.machine.cgroups import unescaped

ROOT = Path("/")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel's proc_ns.h: that of the machine itself
_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class _Mount:
    """A mounted file system: its device, which of its folders is mounted, and where; one line of `mountinfo`."""

    device: str
    top: str
    point: str
    kind: str

    def place(self, folder: str) -> tuple[str, str]:
        """Where a folder below the mount point really is: the same for two processes that share it."""
        inside = folder.removeprefix(self.point.rstrip("/"))
        return self.device, (self.top.rstrip("/") + inside) or "/"


def private_reason(folder: Path, root: Path = ROOT) -> str:
    """Why other processes of this machine do not see this folder; empty where nothing says so.

    Two facts are looked at: whether the folder is elsewhere for the first process, and whether this process is in a
    container whose folder was not brought in from outside.
    """
    path = os.path.realpath(folder)
    own = _covering(_mounts(root / "proc/self/mountinfo"), path)
    first = _covering(_mounts(root / "proc/1/mountinfo"), path)
    if own is None:
        return ""
    if first is not None and own.place(path) != first.place(path):
        return f"{own.point} is private to this process and those it starts (systemd's PrivateTmp, or unshare)"
    if _in_container(root) and (own.point == "/" or own.kind in _IN_MEMORY):
        return f"{own.point if own.point != '/' else path} is inside this container only"
    return ""


def _covering(mounts: list[_Mount], path: str) -> _Mount | None:
    """The mount that a path is on: the longest mount point, and of equal ones the last, which hides the others."""
    found = [mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")]
    return max(reversed(found), key=lambda mount: len(mount.point), default=None)


def _mounts(file: Path) -> list[_Mount]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()[:1]
        if len(fields) >= 5 and kind:
            found.append(_Mount(fields[2], unescaped(fields[3]), unescaped(fields[4]), kind[0]))
    return found


def _in_container(root: Path) -> bool:
    """Whether this process has a PID namespace of its own; the machine's has a number that the kernel fixes."""
    try:
        return os.stat(root / "proc/self/ns/pid").st_ino != _FIRST_PID_NAMESPACE
    except OSError:
        return False
