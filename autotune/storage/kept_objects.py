"""Compiled kernels that are kept, so that none is compiled twice: each is found by what it is made from.

The key of an object is a digest of all that it is made from. Each file is sealed together with its key: one that is
damaged, was put under another name, or is somebody else's, is removed and made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import DiskProblem
from autotune.regular_file import read_regular
from autotune.storage.atomic import make_folders, temporary_name
from autotune.storage.seals import OBJECT, digest, is_sealed, seal

_SUFFIX = ".o"
_MAX_BYTES = 2**28  # of one file; a large kernel has 100 KB


@dataclass(frozen=True)
class KeptObjects:
    """The compiled kernels of a workspace.

    All of it may be deleted at any time. A disk that cannot be written to keeps nothing, and is no error.

    Attributes:
        folder: Where they are.
        most_bytes: How large all of them together may be; 0 to keep none.
    """

    folder: Path
    most_bytes: int

    def read(self, key: str) -> bytes | None:
        """Return an object; None if it is not kept. What is not as it was kept is removed.

        Args:
            key: The digest of what it is made from, in hexadecimal digits.
        """
        path = self._path(key)
        try:
            mark, _, content = read_regular(path, _MAX_BYTES).partition(b"\n")
            if is_sealed(OBJECT, _bound(key, content), mark.decode(errors="replace")):
                os.utime(path)
                return content
            path.unlink()
        except (OSError, DiskProblem):
            pass
        return None

    def add(self, key: str, content: bytes) -> None:
        """Keep an object. The arguments are those of `read`."""
        if len(content) > self.most_bytes:
            return
        temporary = self.folder / temporary_name()
        with suppress(OSError, DiskProblem):
            make_folders(self.folder)
            try:
                # Not synced to disk: the seal tells a file that a power cut has torn.
                temporary.write_bytes(seal(OBJECT, _bound(key, content)).encode() + b"\n" + content)
                os.replace(temporary, self._path(key))
            finally:
                temporary.unlink(missing_ok=True)

    def trim(self) -> None:
        """Remove the objects that were not used for longest, until the rest is no larger than it may be."""
        rest = self.most_bytes
        for _, size, path in sorted(self._files(), reverse=True):
            rest -= size
            if rest < 0:
                with suppress(OSError):
                    path.unlink()

    def clear(self) -> int:
        """Remove all objects, and return how many bytes they had.

        Raises:
            OSError: One cannot be removed.
        """
        files = list(self._files())
        for _, _, path in files:
            path.unlink(missing_ok=True)
        return sum(size for _, size, _ in files)

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Yield when each file was used last, in nanoseconds, its size and its path."""
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError):
                status = path.stat(follow_symlinks=False)
                yield status.st_mtime_ns, status.st_size, path

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def _bound(key: str, content: bytes) -> bytes:
    """Return what is sealed: an object's digest with its key."""
    return key.encode() + b"\0" + digest(content)
