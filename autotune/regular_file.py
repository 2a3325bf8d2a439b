"""Read and write files that others may have put there: a pipe in place of one keeps nobody waiting, no device is read,
and nothing is written to where a link leads.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

from autotune.errors import BadInput

_CHUNK = 1 << 20


def open_regular(path: Path | str, buffering: int = io.DEFAULT_BUFFER_SIZE, *, parent: int | None = None) -> BinaryIO:
    """Open a file to read it.

    Args:
        buffering: As `open` takes it.
        parent: The descriptor of the folder that its path begins in; None for the current one.

    Raises:
        OSError: It cannot be read, or is a pipe or a device, which may have no end.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe would wait for its writer
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.ESPIPE, "it is a pipe or a device, and no file", str(path))
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most: int | None = None) -> bytes:
    """Return the content of a file.

    Args:
        most: How many bytes it may have; None for any number.

    Raises:
        OSError: It cannot be read, is a pipe or a device, or has more bytes.
    """
    with open_regular(path) as file:
        return file.read() if most is None else read_at_most(file, path, most)


def read_at_most(file: BinaryIO, path: Path, most: int) -> bytes:
    """Return the rest of an open file.

    Args:
        path: Its path, for the message.
        most: How many bytes it may have.

    Raises:
        OSError: It cannot be read, or has more bytes.
    """
    data = bytearray()
    while len(data) <= most and (chunk := file.read(min(_CHUNK, most + 1 - len(data)))):
        data += chunk  # by parts: `read` makes room for all that it is asked for
    if len(data) > most:
        raise OSError(errno.EOVERFLOW, f"it is larger than {most >> 20} MiB, and none of its kind is", str(path))
    return bytes(data)


def open_to_write(path: Path, mode: Literal["append", "change"] = "append") -> BinaryIO:
    """Open a file to write to it as it stands. A missing one is made.

    Args:
        mode: Whether what is written comes at its end, or where the writer says.

    Raises:
        OSError: It cannot be written, or is a link, a pipe or a device.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | (os.O_APPEND if mode == "append" else 0), 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ESPIPE, "it is a pipe or a device, and no file", str(path))
        return os.fdopen(descriptor, "wb", 0)
    except BaseException:
        os.close(descriptor)
        raise


def truncate(path: Path, length: int) -> None:
    """Cut off what a file has beyond so many bytes.

    Raises:
        OSError: It cannot be written, or is a link, a pipe or a device.
    """
    with open_to_write(path, "change") as file:
        file.truncate(length)


def check_readable(path: Path) -> None:
    """Check that a file that a user names can be read.

    Raises:
        BadInput: It cannot, is not there, or is a folder, a pipe or a device.
    """
    try:
        open_regular(path).close()
    except FileNotFoundError:
        raise BadInput(f"cannot read {path}: there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"cannot read {path}: {reason}") from error
