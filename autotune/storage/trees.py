"""Walk and delete trees of folders that others made: of any depth, with any names, and with folders closed to us.

Paths in a tree may be longer than the system takes, and its folders more than a process can open or a recursion can
follow. So a walk holds two open folders at a time, and goes up by `..`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOG = logging.getLogger("autotune.storage")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class TreeEntry:
    """Something in a tree, as a walk meets it.

    Attributes:
        parent: The descriptor of the folder that it is in, until the walk goes on.
        depth: How many folders it is below the top; 0 for what is in the top folder itself.
        status: What `lstat` says of it.
    """

    parent: int
    name: str
    depth: int
    status: os.stat_result

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, and no link to one."""
        return stat.S_ISDIR(self.status.st_mode)


@dataclass
class _Level:
    """A folder that a walk is in: what is left to visit there, last first, and how its parent calls it."""

    left: list[str]
    entry: TreeEntry | None
    status: os.stat_result


def walk(top: Path, *, unlock: bool = False) -> Iterator[TreeEntry]:
    """Yield everything in a folder in the order of names, each folder behind what is in it.

    Args:
        unlock: Let the owner read, enter and change each folder, for the sake of who deletes it.

    Raises:
        OSError: A folder cannot be read, or was moved meanwhile.
    """
    if unlock:
        _unlock(os.lstat(top), top)
    current = os.open(top, _FLAGS)
    try:
        levels = [_Level(_names(current), None, os.fstat(current))]
        while levels:
            level = levels[-1]
            if level.left:
                entry = _entry(current, level.left.pop(), len(levels) - 1)
                if entry is None:
                    continue
                if not entry.is_folder:
                    yield entry
                    continue
                try:
                    current = _moved(current, _entered(entry, unlock))
                except FileNotFoundError:
                    continue
                except PermissionError:
                    if not unlock:
                        raise
                    yield entry  # an empty folder of somebody else's can be deleted all the same
                    continue
                levels.append(_Level(_names(current), entry, os.fstat(current)))
                continue
            levels.pop()
            if level.entry is not None:
                current = _moved(current, _left(current, levels[-1].status))
                yield TreeEntry(current, level.entry.name, level.entry.depth, level.entry.status)
    finally:
        os.close(current)


def remove_tree(top: Path) -> None:
    """Delete a folder and everything in it. A link is deleted, and what it leads to stays.

    Raises:
        FileNotFoundError: It is not there.
        OSError: Something could not be deleted. Everything else was.
    """
    problem: OSError | None = None
    for entry in walk(top, unlock=True):
        try:
            (os.rmdir if entry.is_folder else os.unlink)(entry.name, dir_fd=entry.parent)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = problem or OSError(error.errno, error.strerror, str(top / entry.name[:64]))
    if problem is not None:
        raise problem
    os.rmdir(top)


def discard_tree(top: Path) -> bool:
    """Delete a folder that nobody needs, if it is there, and log why it stays where it cannot be deleted.

    Returns:
        Whether it is gone.
    """
    try:
        remove_tree(top)
    except FileNotFoundError:
        return True
    except OSError as error:
        _LOG.warning("%s could not be deleted (%s); delete it by hand", top, error.strerror or error)
        return False
    return True


def _names(folder: int) -> list[str]:
    return sorted(os.listdir(folder), reverse=True)


def _entry(folder: int, name: str, depth: int) -> TreeEntry | None:
    try:
        return TreeEntry(folder, name, depth, os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:  # somebody has just deleted it
        return None


def _entered(entry: TreeEntry, unlock: bool) -> int:
    if unlock:
        _unlock(entry.status, entry.name, entry.parent)
    return os.open(entry.name, _FLAGS, dir_fd=entry.parent)


def _unlock(status: os.stat_result, path: str | Path, parent: int | None = None) -> None:
    """Let the owner of a folder do everything in it, if that is us."""
    is_closed = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IRWXU != stat.S_IRWXU
    if is_closed and status.st_uid == os.geteuid():
        os.chmod(path, stat.S_IMODE(status.st_mode) | stat.S_IRWXU, dir_fd=parent)


def _left(folder: int, above: os.stat_result) -> int:
    """Open the folder above one, which has to be the one that the walk came from."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open("..", _FLAGS, dir_fd=folder)
        if os.path.samestat(os.fstat(descriptor), above):
            return descriptor
        os.close(descriptor)
    raise OSError(errno.ESTALE, "it was moved while it was read")


def _moved(old: int, new: int) -> int:
    os.close(old)
    return new
