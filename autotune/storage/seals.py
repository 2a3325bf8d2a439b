"""Seals tell what this user's autotune has made from what somebody else has put into a workspace.

Some files of a workspace run, or are read by code that trusts them: the libraries of candidates, kept kernels, the cost
model, the command of `submit --on-end`. Each carries a seal, a keyed hash (BLAKE2, RFC 7693). The key is the user's,
and in no workspace, so a copied workspace has no valid seal: its libraries are built again, its cost model is trained
again, and its commands are refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import stat
from pathlib import Path
from typing import BinaryIO

from autotune.errors import DiskProblem
from autotune.regular_file import open_regular
from autotune.storage.atomic import make_folders
from autotune.storage.paths import seal_keys

# What is sealed.
JOB = "job"
LIBRARY = "library"
OBJECT = "object"
EXPORT = "export"
READY = "ready-library"
COST_MODEL = "cost-model"
# The key in hexadecimal digits, for processes that have another home than the user, such as those on a node.
VARIABLE = "AUTOTUNE_SEAL_KEY"
_KEY_BYTES = 32
_SEAL_BYTES = 16
_DIGEST_BYTES = 32
_CHUNK = 2**20
_OPEN_TO_OTHERS = 0o077


def seal(purpose: str, data: bytes) -> str:
    """Return the seal of something that was made for a purpose, in hexadecimal digits.

    Raises:
        DiskProblem: There is no place for the key.
    """
    whole = purpose.encode() + b"\0" + data
    return hashlib.blake2b(whole, key=user_key(), digest_size=_SEAL_BYTES).hexdigest()


def is_sealed(purpose: str, data: bytes, mark: object) -> bool:
    """Return whether a mark is the seal of this for this purpose.

    Raises:
        DiskProblem: There is no place for the key.
    """
    return isinstance(mark, str) and hmac.compare_digest(mark.encode(), seal(purpose, data).encode())


def digest(data: bytes) -> bytes:
    """Return the digest of a content, as `file_digest` does of a file with it."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def file_digest(path: Path | str, parent: int | None = None) -> bytes:
    """Return a digest of a file's content.

    Args:
        parent: The descriptor of the folder that its path begins in; None for the current one.

    Raises:
        OSError: It cannot be read.
    """
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with open_regular(path, parent=parent) as file:
        while chunk := file.read(_CHUNK):
            whole.update(chunk)
    return whole.digest()


def user_key() -> bytes:
    """Return this user's key, which is made on the first call.

    Raises:
        DiskProblem: There is no place for it.
    """
    if handed := os.environ.get(VARIABLE):
        return handed.encode()[: hashlib.blake2b.MAX_KEY_SIZE]
    problems: list[str] = []
    for path in seal_keys():
        try:
            return _kept(path).hex().encode()
        except (OSError, DiskProblem) as error:
            problems.append(str(error))
    raise DiskProblem(f"there is no place for a key of {_KEY_BYTES} bytes; set XDG_STATE_HOME: {'; '.join(problems)}")


def _kept(path: Path) -> bytes:
    """Read a key, and make it where there is none that is whole and nobody else's."""
    make_folders(path.parent, 0o700)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: it may be a pipe
    with os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(f"{path} is no file of this user")
        key = file.read(_KEY_BYTES + 1) or b""
        is_private = not stat.S_IMODE(status.st_mode) & _OPEN_TO_OTHERS
        return key if len(key) == _KEY_BYTES and is_private else _renewed(file)


def _renewed(file: BinaryIO) -> bytes:
    key = os.urandom(_KEY_BYTES)
    os.fchmod(file.fileno(), 0o600)
    file.seek(0)
    file.truncate()
    file.write(key)
    os.fsync(file.fileno())
    return key
