"""Leases on the CPUs and devices of this machine, shared by all workspaces and users.

One folder has a lock file for each resource, and a turnstile lock. To lease anything, a process first takes the
turnstile. A process that waits for several resources keeps it, so that no newcomer takes those that become free. While
it waits it renews the time of the turnstile's file. A turnstile that was not renewed for a minute is passed by: its
holder is stopped, or does not let anybody else in. Who holds a lease is told by the kernel, in `/proc/locks`.

All processes of the machine have to see the same folder. A container has its own /tmp. So has a systemd service with
PrivateTmp. Processes outside do not see the locks in it, so two daemons would measure on the same CPUs at once and
disturb each other unnoticed. `private_reason` tells such folders.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import Busy, DiskProblem, one_line
from autotune.machine.cgroups import ROOT, unescaped
from autotune.ownership import owner_name
from autotune.storage import locks
from autotune.storage.locks import Lease

_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in proc_ns.h of the kernel: the namespace of the machine itself
_IN_MEMORY = ("tmpfs", "ramfs")
_POLL_S = 0.05
_TURNSTILE = "turnstile"
_RENEW_EVERY_S = 10.0
_ABANDONED_AFTER_S = 60.0
_COMMAND_LENGTH = 80


@dataclass(frozen=True)
class _Mount:
    """A mounted file system: one line of `mountinfo`."""

    device: str  # the device number, such as `8:1`
    top: str  # which folder of the file system is mounted
    point: str  # where it is mounted
    kind: str  # the type of the file system

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


def cpu_name(cpu: int) -> str:
    """Return the resource name of a CPU."""
    return f"cpu-{cpu}"


def lease(folder: Path, names: Iterable[str], wait_s: float) -> Lease:
    """Lease all of the named resources, or none.

    The kernel releases them when this process dies. Its forked children do not hold them.

    Args:
        folder: The lock folder of this machine.
        names: The resources; none for a lease on nothing.
        wait_s: How many seconds to wait for them; a negative number to wait for ever.

    Returns:
        The lease, which ends with its `with` block.

    Raises:
        Busy: The resources were not free in time. The message names them.
        LockFolderProblem: The lock folder is unsafe or cannot be used.
    """
    paths = sorted({_path(folder, name) for name in names})
    deadline = None if wait_s < 0 else time.monotonic() + wait_s
    with _usable(folder):
        try:
            with _turnstile(folder, deadline) as turnstile:
                if held := _take_all(paths, deadline, turnstile):
                    return held
        except Busy as busy:  # at the turnstile, which means nothing to the user
            raise Busy(f"{_names(paths)} in use by others") from busy
    raise Busy(f"{_names(paths)} in use by others")


def lease_one(folder: Path, names: Iterable[str]) -> Lease:
    """Lease one of the named resources, whichever becomes free first. Waits for ever.

    Args:
        folder: The lock folder of this machine.

    Returns:
        The lease, which ends with its `with` block.

    Raises:
        LockFolderProblem: The lock folder is unsafe or cannot be used.
    """
    paths = [_path(folder, name) for name in names]
    while True:
        with _usable(folder), _turnstile(folder, None):
            for path in paths:
                if held := locks.try_lock(path):
                    return held
        time.sleep(_POLL_S)


def lease_holders(folder: Path, names: Iterable[str]) -> list[Holder]:
    """Return who holds these resources; if nobody does, who holds the turnstile."""
    return holders(_path(folder, name) for name in names) or holders([_path(folder, _TURNSTILE)])


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Check the lock folder, and say for the user why a lock in it cannot be taken."""
    locks.ensure_lock_folder(folder)
    try:
        yield
    except DiskProblem as problem:
        raise locks.cannot_lock(problem) from problem


@contextmanager
def _turnstile(folder: Path, deadline: float | None) -> Iterator[Path | None]:
    """Hold the turnstile during a `with` block, or pass it by if it is abandoned.

    Yields:
        Its file; None if it was passed by.

    Raises:
        Busy: It was not free in time.
    """
    path = _path(folder, _TURNSTILE)
    abandoned = False
    while (held := locks.try_lock(path)) is None and not abandoned:
        if deadline is not None and time.monotonic() >= deadline:
            raise Busy("out of time")
        time.sleep(_POLL_S)  # who has just taken it may not have renewed it yet
        abandoned = _abandoned(path)
    if held is None:
        yield None
        return
    with held:
        _renew(path)
        yield path


def _take_all(paths: list[Path], deadline: float | None, turnstile: Path | None) -> Lease | None:
    """Wait until all locks are free at once, and take them; None if they are not in time. Renew the turnstile."""
    renew_at = time.monotonic() + _RENEW_EVERY_S
    while True:
        if held := locks.acquire_all(paths):
            return held
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return None
        if turnstile is not None and now >= renew_at:
            _renew(turnstile)
            renew_at = now + _RENEW_EVERY_S
        time.sleep(_POLL_S)


def _renew(turnstile: Path) -> None:
    with suppress(OSError):
        os.utime(turnstile)


def _abandoned(turnstile: Path) -> bool:
    try:
        age = time.time() - turnstile.stat().st_mtime
    except OSError:
        return False
    return not -_ABANDONED_AFTER_S < age < _ABANDONED_AFTER_S


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.lock"


def _names(paths: list[Path]) -> str:
    return ", ".join(path.stem for path in paths)


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
