"""Write files and folders so that they appear whole or not at all, even if the writer is killed.

A file is written under a temporary name next to its final one, synced to disk and renamed. Readers see the old content
or the new content, never a mixture, also after a power cut. A writer that is killed leaves at most a `.tmp-*` file
behind, which `remove_temporaries` deletes later.

"Durable" means that it survives a power cut.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune import schema
from autotune.errors import BadInput, DamagedFile, InvalidData, NewerFormat, disk_problem
from autotune.regular_file import read_regular
from autotune.storage.trees import remove_tree, walk

_LOG = logging.getLogger("autotune.storage")
TEMPORARY_PREFIX = ".tmp-"
LEFTOVER_AGE_S = 3600.0
_MAX_JSON_BYTES = 2**28  # a spec has some 100 KB, a stage file of 64 candidates a megabyte
# Formats that grow with the number of jobs or tasks only, and that `status` and the daemon read again and again.
_MAX_SMALL_BYTES = 2**22
_SMALL = ("autotune-state", "autotune-control", "autotune-daemon", "autotune-attendance", "autotune-last-id")


def check_output(path: Path) -> None:
    """Check a path at which the user wants a file, before the work of which it is to have the result.

    Raises:
        BadInput: There is something else, such as a folder or a device, which `publish_bytes` would replace.
        DiskProblem: There is no folder for it.
    """
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} exists and is not a file; give another path")
    if not path.parent.is_dir():
        raise disk_problem("write", path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))


def publish_bytes(path: Path, data: bytes) -> None:
    """Replace the content of a file with `data`, durably and in one step.

    Raises:
        DiskProblem: The file could not be written. It is as it was before, unless only the last step failed, which
            makes the renaming durable.
    """
    temporary = path.with_name(temporary_name())
    try:
        try:
            write_new(temporary, data)
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
    except IsADirectoryError:  # a mistake; moved out of the way so that nothing in it is lost
        aside = path.with_name(f"{path.name}.damaged-{os.urandom(4).hex()}")
        os.rename(path, aside)
        _LOG.warning("%s was a folder: set aside as %s", path, aside.name)
        os.replace(temporary, path)


def publish_json(path: Path, kind: str, version: int, payload: Mapping[str, Any]) -> None:
    """Write a JSON file that begins with its format and version.

    The same payload always gives the same bytes.

    Args:
        path: The file to write or replace.
        kind: The name of the format.
        payload: The rest of the content.

    Raises:
        DiskProblem: The file could not be written.
        ValueError: The payload has a key `format` or `version`, a NaN or an infinity.
    """
    if payload.keys() & {"format", "version"}:
        raise ValueError("a payload may not have the keys 'format' and 'version'")
    ordered = json.loads(json.dumps(payload, sort_keys=True, allow_nan=False))
    text = json.dumps({"format": kind, "version": version, **ordered})
    publish_bytes(path, text.encode("ascii") + b"\n")


def read_json(path: Path, kind: str, version: int) -> dict[str, Any]:
    """Read a payload that `publish_json` wrote; see `read_versioned_json`."""
    return read_versioned_json(path, kind, version)[1]


def read_versioned_json(path: Path, kind: str, version: int) -> tuple[int, dict[str, Any]]:
    """Read the version of a file and the payload that `publish_json` wrote.

    Args:
        kind: The name that its format must have.
        version: The newest version that can be read.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedFile: It is not a file of this format.
        NewerFormat: Its version is above `version`.
        DiskProblem: It cannot be read.
    """
    content = _load(path, _MAX_SMALL_BYTES if kind in _SMALL else _MAX_JSON_BYTES)
    written_kind = content.pop("format", None)
    written_version = content.pop("version", None)
    if written_kind != kind:
        raise DamagedFile(f"{path} is damaged: its format is {written_kind!r:.60} instead of {kind!r}")
    if type(written_version) is not int or written_version < 1:
        raise DamagedFile(f"{path} is damaged: its version is {written_version!r:.60}")
    if written_version > version:
        raise NewerFormat(
            f"{path} has version {written_version!r:.20} of format {kind!r}, and this autotune reads up to"
            f" version {version}; a newer autotune wrote it: upgrade autotune"
        )
    return written_version, content


def publish_folder(temporary: Path, final: Path) -> None:
    """Rename a folder to its final name, with everything in it durable.

    Args:
        final: Its new path, in the same parent folder.

    Raises:
        FileExistsError: `final` exists. The temporary folder is left as it is.
        DiskProblem: The folder could not be synced or renamed. It is left as it is.
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


def publish_file(temporary: Path, final: Path) -> None:
    """Rename a file to its final name, with its content durable. A file that has that name is replaced.

    Raises:
        DiskProblem: The file could not be synced or renamed.
    """
    try:
        _sync(temporary)
        _replace(temporary, final)
        sync_folder(final.parent)
    except OSError as error:
        raise disk_problem("publish", final, error) from error


def make_folders(path: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents, durably.

    A power cut could otherwise remove a new folder together with the synced files in it.

    Args:
        mode: Its permissions. Parents get the usual ones.

    Raises:
        DiskProblem: A folder could not be made.
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
    """Return a value that changes whenever the file is replaced.

    The time of change alone would not do: two changes may come within one tick of the clock.

    Returns:
        The time of change in nanoseconds, and the inode.

    Raises:
        OSError: The file is not there or cannot be looked at.
    """
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ino


def remove(path: Path) -> None:
    """Delete a file if it exists, durably.

    Raises:
        DiskProblem: It could not be deleted.
    """
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_problem("remove", path, error) from error


def remove_temporaries(folder: Path) -> list[Path]:
    """Delete temporary files and folders that killed writers left in a folder over an hour ago.

    What cannot be deleted is left: it belongs to another user, or is gone by now.

    Returns:
        The paths that were deleted.
    """
    removed = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY_PREFIX) and _discard_if_old(entry):
                removed.append(Path(entry.path))
    return removed


def temporary_name() -> str:
    """Return a new unique file name that `remove_temporaries` recognises."""
    return f"{TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(6).hex()}"


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to a file descriptor. One call of `os.write` may write only a part.

    Raises:
        OSError: A write failed.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: The folder could not be synced.
    """
    _sync(folder)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, and make its bytes durable.

    Raises:
        OSError: It is there, or cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(path: Path | str, parent: int | None = None) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(root: Path) -> None:
    for entry in walk(root):
        if not stat.S_ISLNK(entry.status.st_mode):  # syncing would follow the link out of the folder
            _sync(entry.name, entry.parent)
    sync_folder(root)


def _load(path: Path, most: int) -> dict[str, Any]:
    try:
        content = schema.parsed_json(read_regular(path, most))
    except FileNotFoundError:
        raise
    except IsADirectoryError as error:
        raise DamagedFile(f"{path} is damaged: it is a folder") from error
    except OSError as error:
        if error.errno in (errno.ESPIPE, errno.EOVERFLOW):
            raise DamagedFile(f"{path} is damaged: {error.strerror}") from error
        raise disk_problem("read", path, error) from error
    except InvalidData as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise DamagedFile(f"{path} is damaged: it holds a JSON {type(content).__name__}")
    return content


def _discard_if_old(entry: os.DirEntry[str]) -> bool:
    try:
        if time.time() - entry.stat(follow_symlinks=False).st_mtime < LEFTOVER_AGE_S:
            return False
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            os.unlink(entry.path)
    except OSError:
        return False
    return True
