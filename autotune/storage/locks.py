"""Locks between threads, processes, workspaces and users of one machine.

A lock is ``flock`` on a file that is never deleted, by way of ``filelock``. It excludes every
other thread and process, and the kernel releases it when its holder dies, by SIGKILL too.

What holds of ``fork`` (filelock 4.1 to 4.2, tested): the child of ``os.fork`` does not hold the
lock. ``filelock`` closes the inherited descriptor in the child, so that ``release()`` there does
nothing, the parent's lock stays held, and it ends with the parent even if the child lives on. A
``subprocess`` child never inherits the descriptor. Only a ``fork`` made in C, past Python's
hooks, would carry the lock along until that child ends or calls ``exec``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

from autotune.errors import Busy, StorageError, disk_problem
from autotune.storage.atomic import temporary_name

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["Lease", "acquire_all", "ensure_lock_folder", "exclusive", "try_lock"]

_POLL_S = 0.01


@final
class Lease:
    """Locks held together; ``paths`` names them in the order they were taken.

    Keep it for as long as they are needed: a lease that nothing refers to any more is released.
    It may be released by another thread than the one that took it.
    """

    def __init__(self, paths: Sequence[Path], held: ExitStack) -> None:
        self.paths = tuple(paths)
        self._held = held

    def release(self) -> None:
        """Let go of all of them, the last one first. Again is harmless, as is a forked child's."""
        self._held.close()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def exclusive(path: Path, timeout_s: float = -1) -> Iterator[None]:
    """Hold the lock for the length of a ``with`` block, after waiting for it if need be.

    Raises ``Busy`` when it is not free within ``timeout_s`` (negative: wait for ever),
    ``DiskProblem`` when its file cannot be made or opened, and ``RuntimeError`` when the same
    thread holds it already, for that wait would never end.
    """
    lock = _acquire(path, timeout_s)
    if lock is None:
        raise Busy(f"{path} is locked by someone else; gave up after {timeout_s:g} s")
    try:
        yield
    finally:
        lock.release()


def try_lock(path: Path) -> Lease | None:
    """The lock, or ``None`` when someone holds it, at once. Raises ``DiskProblem``."""
    return acquire_all([path])


def acquire_all(paths: Iterable[Path]) -> Lease | None:
    """All of the locks, or ``None`` and none of them when someone holds one, at once.

    They are taken in sorted order. Raises ``DiskProblem``, and holds none then either.
    """
    ordered = sorted(set(paths))
    with ExitStack() as held:
        for path in ordered:
            lock = _acquire(path, 0)
            if lock is None:
                return None
            held.callback(lock.release)
        return Lease(ordered, held.pop_all())


def ensure_lock_folder(path: Path) -> None:
    """Make the folder for locks that all users of the machine share, open to all and sticky.

    Raises ``StorageError`` for something else at that place that another user could turn against
    this one: a symbolic link, or a folder in which another user could swap files. A private folder
    of one's own is taken as it is. Raises ``DiskProblem`` when the folder cannot be made.
    """
    try:
        if not os.path.lexists(path):
            _make_shared_folder(path)
        found = os.lstat(path)
    except OSError as error:
        raise disk_problem("make the lock folder", path, error) from error
    if stat.S_ISLNK(found.st_mode):
        raise StorageError(f"the lock folder {path} is a symbolic link; name the folder itself")
    if not stat.S_ISDIR(found.st_mode):
        raise StorageError(f"the lock folder {path} is not a folder")
    shared = found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH
    if shared and not found.st_mode & stat.S_ISVTX:
        raise StorageError(
            f"the lock folder {path} lets another user replace its files; its owner should run: chmod 1777 {path}"
        )


def _make_shared_folder(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that nobody meets it between mkdir, which obeys umask, and chmod.
    temporary = path.with_name(temporary_name())
    os.mkdir(temporary)
    try:
        os.chmod(temporary, 0o1777)
        os.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            os.rmdir(temporary)
        if not os.path.lexists(path):  # otherwise someone else was first
            raise


def _acquire(path: Path, timeout_s: float) -> BaseFileLock | None:
    import filelock  # here, for it is slow to import and readers of a workspace take no locks

    try:
        _create(path)
        lock = filelock.FileLock(
            path,
            timeout=timeout_s,
            poll_interval=_POLL_S,
            mode=0o666,
            thread_local=False,
            # Its substitute where the system lacks flock would outlive a killed holder.
            fallback_to_soft=False,
        )
        lock.acquire()
    except filelock.Timeout:  # before OSError, whose subclass it is
        return None
    except OSError as error:
        raise disk_problem("lock", path, error) from error
    return lock


def _create(path: Path) -> None:
    """Make the lock's file, if need be, so that it never exists without its mode.

    Created in place it would first obey umask, and a process killed before the chmod would lock
    all other users out of it for good.
    """
    if os.path.lexists(path):
        return
    temporary = path.with_name(temporary_name())
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        os.chmod(temporary, 0o666)
        with suppress(OSError):  # someone else was first; or no hard links here: then by filelock
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
