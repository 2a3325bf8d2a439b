"""Files and folders that appear whole or not at all, whatever kills the writer.

Each is prepared under a temporary name next to its final one, made durable, and renamed. A
reader, or the next start after a power cut, sees the old content or the new and never a mixture.
A writer that was killed leaves at most a ``.tmp-*`` behind, for ``sweep_temporaries``.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.errors import DamagedFile, NewerFormat, disk_problem

__all__ = [
    "LEFTOVER_AGE_S",
    "TEMPORARY_PREFIX",
    "make_folders",
    "publish_bytes",
    "publish_folder",
    "publish_json",
    "read_json",
    "remove",
    "stamp",
    "sweep_temporaries",
    "sync_folder",
    "temporary_name",
    "write_all",
]

_LOG = logging.getLogger("autotune.storage")
TEMPORARY_PREFIX = ".tmp-"
LEFTOVER_AGE_S = 3600.0


def publish_bytes(path: Path, data: bytes) -> None:
    """Make ``path`` hold ``data``, durably and in one step.

    Raises ``DiskProblem``; ``path`` is then as it was before, unless the very last step, making
    the rename durable, is what failed.
    """
    temporary = path.with_name(temporary_name())
    try:
        try:
            _write_new(temporary, data)
            _replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise disk_problem("write", path, error) from error


def _replace(temporary: Path, path: Path) -> None:
    try:
        os.replace(temporary, path)
    except IsADirectoryError:  # nobody can have meant it: out of the way, and nothing in it is lost
        aside = path.with_name(f"{path.name}.damaged-{os.urandom(4).hex()}")
        os.rename(path, aside)
        _LOG.warning("%s was a folder: set aside as %s", path, aside.name)
        os.replace(temporary, path)


def publish_json(path: Path, kind: str, version: int, payload: Mapping[str, Any]) -> None:
    """Publish ``payload`` as JSON that names its format and version first.

    The same payload always gives the same bytes. Raises ``DiskProblem``, and ``ValueError`` for a
    payload that has keys of its own named ``format`` or ``version``, or a NaN or an infinity.
    """
    if payload.keys() & {"format", "version"}:
        raise ValueError("a payload may not have the keys 'format' and 'version'")
    ordered = json.loads(json.dumps(payload, sort_keys=True, allow_nan=False))
    text = json.dumps({"format": kind, "version": version, **ordered})
    publish_bytes(path, text.encode("ascii") + b"\n")


def read_json(path: Path, kind: str, version: int) -> dict[str, Any]:
    """The payload that ``publish_json`` wrote, of this version or an earlier one. Raises as ``read_versioned_json``."""
    return read_versioned_json(path, kind, version)[1]


def read_versioned_json(path: Path, kind: str, version: int) -> tuple[int, dict[str, Any]]:
    """The version of a file, at most ``version``, and the payload that ``publish_json`` wrote.

    Raises ``FileNotFoundError``, ``DamagedFile`` when it is not such a file, ``NewerFormat`` when
    its version is above ``version``, and ``DiskProblem`` when it cannot be read.
    """
    content = _load(path)
    found_kind, found = content.pop("format", None), content.pop("version", None)
    if found_kind != kind:
        raise DamagedFile(f"{path} is damaged: its format is {found_kind!r} instead of {kind!r}")
    if type(found) is not int or found < 1:
        raise DamagedFile(f"{path} is damaged: its version is {found!r}")
    if found > version:
        raise NewerFormat(
            f"{path} has version {found} of format {kind!r}, and this autotune reads up to"
            f" version {version}; a newer autotune wrote it: upgrade autotune"
        )
    return found, content


def publish_folder(temporary: Path, final: Path) -> None:
    """Make a prepared folder appear as ``final``, with everything in it durable.

    Both must have the same parent. Raises ``FileExistsError`` when ``final`` exists, and
    ``DiskProblem``; the temporary folder is then left as it is.
    """
    if os.path.lexists(final):  # os.rename would silently replace an empty folder
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final))
    try:
        _sync_tree(temporary)
        os.rename(temporary, final)
        sync_folder(final.parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) and os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from error
        raise disk_problem("publish", final, error) from error


def make_folders(path: Path, mode: int = 0o777) -> None:
    """Make the folder, of this mode, and those above it that are missing, durably. Raises ``DiskProblem``.

    Without it a power cut could take a new folder away, and with it all that was synced in it.
    """
    try:
        _make_folders(path, mode)
    except OSError as error:
        raise disk_problem("make", path, error) from error


def _make_folders(path: Path, mode: int) -> None:
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode if folder is missing[0] else 0o777, exist_ok=True)
        sync_folder(folder.parent)


def stamp(path: str | Path) -> tuple[int, int]:
    """Which publication of a file is there. Raises ``OSError``.

    A clock tick may be longer than the time between two changes, but each change is a new file.
    """
    found = os.stat(path)
    return found.st_mtime_ns, found.st_ino


def remove(path: Path) -> None:
    """Delete the file if it is there, durably. Raises ``DiskProblem``."""
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_problem("remove", path, error) from error


def sweep_temporaries(folder: Path) -> list[Path]:
    """Delete what killed writers left in ``folder`` over an hour ago, and name what was deleted.

    Never raises: what cannot be deleted is someone else's, or gone by now.
    """
    swept = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY_PREFIX) and _discard_if_old(entry):
                swept.append(Path(entry.path))
    return swept


def temporary_name() -> str:
    """A name, unused by anyone else, that ``sweep_temporaries`` recognises."""
    return f"{TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(6).hex()}"


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, however little each call to the system takes. Raises ``OSError``."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable. Raises ``OSError``."""
    _sync(folder, os.O_DIRECTORY)


def _write_new(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root, topdown=False, onerror=_raise):
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():  # its target may be anywhere; the link itself is a name
                _sync(path)
        sync_folder(Path(folder))


def _raise(error: OSError) -> None:
    raise error


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except IsADirectoryError as error:
        raise DamagedFile(f"{path} is damaged: it is a folder") from error
    except OSError as error:
        raise disk_problem("read", path, error) from error
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise DamagedFile(f"{path} is damaged: it holds a JSON {type(content).__name__}")
    return content


def _discard_if_old(entry: os.DirEntry[str]) -> bool:
    try:
        if time.time() - entry.stat(follow_symlinks=False).st_mtime < LEFTOVER_AGE_S:
            return False
        if entry.is_dir(follow_symlinks=False):
            import shutil  # slow to import, and hardly ever needed

            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    except OSError:
        return False
    return True
