"""Read files that others may have put there: a pipe in place of one keeps nobody waiting, and no device is read."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

from autotune.errors import BadInput


def open_regular(path: Path, buffering: int = io.DEFAULT_BUFFER_SIZE) -> BinaryIO:
    """Open a file to read it.

    Raises:
        OSError: It cannot be read, or is a pipe or a device, which may have no end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would wait for its writer
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


def read_regular(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: It cannot be read, or is a pipe or a device.
    """
    with open_regular(path) as file:
        return file.read()


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
