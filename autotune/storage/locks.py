"""Locks between threads, processes, workspaces and users of one machine.

A lock is `flock` on a file that is never deleted, through the package `filelock`. It excludes all other threads and
processes. The kernel releases it when its holder dies, also by SIGKILL.

A child of `os.fork` does not hold the lock (tested with filelock 4.1 to 4.2): `filelock` closes the inherited
descriptor in the child. So `release()` does nothing there, and the lock ends with the parent even if the child lives
on. A child of `subprocess` never inherits the descriptor. Only a `fork` in C code, which bypasses Python's hooks, keeps
the lock until that child ends or calls `exec`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

from autotune.errors import Busy, DiskProblem, LockFolderProblem, disk_problem
from autotune.ownership import owner_name
from autotune.storage.atomic import temporary_name

if TYPE_CHECKING:
    from filelock import BaseFileLock

_POLL_S = 0.01
_OTHERS_FAULT = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR)


@final
class Lease:
    """Locks that are held together. `paths` has them in the order in which they were taken.

    Keep a reference as long as you need the locks: they are released when the lease is garbage-collected. Any thread
    may release it.
    """

    def __init__(self, paths: Sequence[Path], files: list[tuple[int, int]], held: ExitStack) -> None:
        self.paths = tuple(paths)
        self._files = files
        self._held = held

    def in_place(self) -> bool:
        """Return whether the files of the locks are those that were locked.

        A file that was removed or replaced, say with the folder that it was in, keeps nobody else out. One that cannot
        be looked at, because the disk has failed, say, counts as in place.
        """
        try:
            return _files(self.paths) == self._files
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def release(self) -> None:
        """Release all locks, the last one first. A second call does nothing, and neither does one in a forked child."""
        self._held.close()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def exclusive(path: Path, timeout_s: float = -1) -> Iterator[None]:
    """Hold a lock during a `with` block. Wait for it if someone else holds it.

    Args:
        path: The lock's file.
        timeout_s: The longest time to wait, in seconds; negative waits forever.

    Raises:
        Busy: The lock was not released in time.
        DiskProblem: Its file cannot be made or opened.
        RuntimeError: The same thread holds it already, so the wait would never end.
    """
    lock = _acquire(path, timeout_s)
    if lock is None:
        raise Busy(f"{path} is locked by someone else; gave up after {timeout_s:g} s")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder of the user's during a `with` block. It leaves no file there.

    Where the file system has no locks on folders, nothing is held.

    Raises:
        Busy: Another process holds it.
        DiskProblem: The folder cannot be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise disk_problem("open", folder, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another process writes to {folder}; wait for it, or give another folder") from None
        except OSError:
            pass  # the file system has none
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> Lease | None:
    """Take a lock without waiting.

    Returns:
        The lease; None if someone else holds the lock.

    Raises:
        DiskProblem: The lock's file cannot be made or opened.
    """
    return acquire_all([path])


def acquire_all(paths: Iterable[Path]) -> Lease | None:
    """Take all of the locks or none, in sorted order, without waiting.

    Returns:
        The lease; None if someone else holds one of the locks.

    Raises:
        DiskProblem: A lock's file cannot be made or opened. No lock is held then.
    """
    ordered = sorted(set(paths))
    with ExitStack() as held:
        for path in ordered:
            lock = _acquire(path, 0)
            if lock is None:
                return None
            held.callback(lock.release)
        try:
            files = _files(ordered)
        except OSError as error:
            raise disk_problem("lock", error.filename or "a file", error) from error
        return Lease(ordered, files, held.pop_all())


def ensure_lock_folder(path: Path) -> None:
    """Create the folder for locks that all users of the machine share: writable by all, with the sticky bit.

    An existing private folder of this user is accepted as it is.

    Raises:
        LockFolderProblem: The folder cannot be made. Or another user could abuse what is there: a symbolic link, or a
            folder in which they could replace files.
    """
    try:
        if not os.path.lexists(path):
            _make_shared_folder(path)
        status = os.lstat(path)
    except OSError as error:
        raise LockFolderProblem(str(disk_problem("make the lock folder", path, error))) from error
    owner = owner_name(status.st_uid)
    if stat.S_ISLNK(status.st_mode):
        raise LockFolderProblem(f"the lock folder {path} is a symbolic link of {owner}; name the folder itself")
    if not stat.S_ISDIR(status.st_mode):
        raise LockFolderProblem(f"the lock folder {path} is not a folder; its owner, {owner}, should remove it")
    shared = status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH
    if shared and not status.st_mode & stat.S_ISVTX:
        raise LockFolderProblem(
            f"the lock folder {path} lets another user replace its files;"
            f" its owner, {owner}, should run: chmod 1777 {path}"
        )


def cannot_lock(problem: DiskProblem) -> LockFolderProblem:
    """Say why a lock in the lock folder cannot be taken, and whose file it is if its owner keeps others out."""
    error = problem.__cause__
    path = error.filename if isinstance(error, OSError) and error.errno in _OTHERS_FAULT else None
    try:
        status = os.lstat(path) if path is not None else None
    except OSError:
        status = None
    if status is None or (stat.S_ISDIR(status.st_mode) and not isinstance(error, IsADirectoryError)):
        return LockFolderProblem(str(problem))
    owner = owner_name(status.st_uid)
    if not stat.S_ISREG(status.st_mode):
        return LockFolderProblem(f"{path} is in the place of a lock and no file; its owner, {owner}, should remove it")
    return LockFolderProblem(f"nobody but {owner} can lock {path}; {owner} should run: chmod 666 {path}")


def _files(paths: Iterable[Path]) -> list[tuple[int, int]]:
    """Return what tells files from all others: their devices and inodes."""
    statuses = [os.stat(path) for path in paths]
    return [(status.st_dev, status.st_ino) for status in statuses]


def _make_shared_folder(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkdir obeys umask. Renaming keeps other users from seeing the folder before chmod.
    temporary = path.with_name(temporary_name())
    os.mkdir(temporary)
    try:
        os.chmod(temporary, 0o1777)
        os.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            os.rmdir(temporary)
        if not os.path.lexists(path):  # otherwise another process has just made it
            raise


def _acquire(path: Path, timeout_s: float) -> BaseFileLock | None:
    import filelock  # slow to import, and readers of a workspace take no locks

    try:
        _create(path)
        lock = filelock.FileLock(
            path,
            timeout=timeout_s,
            poll_interval=_POLL_S,
            mode=0o666,
            thread_local=False,
            # Where the system lacks flock, filelock's substitute would stay locked after its holder was killed.
            fallback_to_soft=False,
        )
        lock.acquire()
    except filelock.Timeout:  # must come first: it is a subclass of OSError
        return None
    except OSError as error:
        raise disk_problem("lock", path, error) from error
    return lock


def _create(path: Path) -> None:
    """Create the lock's file, if it does not exist, with its final permissions from the start.

    A file created in place obeys umask until chmod. A process killed in between would lock out all other users.
    """
    if os.path.lexists(path):
        return
    temporary = path.with_name(temporary_name())
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        os.chmod(temporary, 0o666)
        with suppress(OSError):  # another process made it; or there are no hard links here, and filelock makes it
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
