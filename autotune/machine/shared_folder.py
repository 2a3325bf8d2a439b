"""Tell whether all processes of this machine see the same folder at a path.

A container has its own /tmp. So has a systemd service with PrivateTmp. Processes outside do not see the locks in it, so
two daemons would measure on the same CPUs at once and disturb each other unnoticed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from autotune.machine.cgroups import unescaped

ROOT = Path("/")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in proc_ns.h of the kernel: the namespace of the machine itself
_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class _Mount:
    """A mounted file system: one line of `mountinfo`.

    Attributes:
        device: The device number, such as `8:1`.
        top: Which folder of the file system is mounted.
        point: Where it is mounted.
        kind: The type of the file system.
    """

    device: str
    top: str
    point: str
    kind: str

    def place(self, folder: str) -> tuple[str, str]:
        """Return the device and the path on it of a folder below the mount point.

        For two processes they are the same if the processes share the folder.
        """
        inside = folder.removeprefix(self.point.rstrip("/"))
        return self.device, (self.top.rstrip("/") + inside) or "/"


def private_reason(folder: Path, root: Path = ROOT) -> str:
    """Return why other processes of this machine do not see a folder; empty if they seem to see it.

    A folder is private if it is somewhere else for the first process of the machine. It is also private if this process
    is in a container and the folder is not mounted from outside.

    Args:
        folder: The folder.
        root: The root of the file system; tests give another one.
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
    """Return the mount that a path is on: the one with the longest mount point, and of equal ones the last."""
    covering = [mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")]
    return max(reversed(covering), key=lambda mount: len(mount.point), default=None)


def _mounts(file: Path) -> list[_Mount]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    mounts = []
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        kind = right.split()[:1]
        if len(fields) >= 5 and kind:
            mounts.append(_Mount(fields[2], unescaped(fields[3]), unescaped(fields[4]), kind[0]))
    return mounts


def _in_container(root: Path) -> bool:
    """Return whether this process has another PID namespace than the machine, whose namespace has a fixed number."""
    try:
        return os.stat(root / "proc/self/ns/pid").st_ino != _FIRST_PID_NAMESPACE
    except OSError:
        return False
