"""Read arrays by their names from an NPZ file that a user gives: only what is asked for, and nothing is unpickled."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from autotune.errors import AutotuneError
from autotune.regular_file import open_regular

_SUFFIX = ".npy"
_PLAIN = "biuf"  # kinds of elements: truth values, integers and floats
_KINDS = {"c": "complex numbers", "U": "text", "S": "text", "M": "dates", "m": "durations", "V": "records"}
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NotPlainArrays(ValueError):
    """A file is no NPZ file, or what was asked for is no array of plain numbers. The message says which and why."""


@dataclass(frozen=True)
class Header:
    """What a file says of an array: its shape and its type."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class ArraysFile:
    """An NPZ file. `opened` makes one."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = tuple(name.removesuffix(_SUFFIX) for name in archive.namelist() if name.endswith(_SUFFIX))

    def header(self, name: str) -> Header:
        """Return what the file says of an array, without reading it.

        Raises:
            NotPlainArrays: It holds something other than numbers, or is damaged.
        """
        with self._member(name) as (header, _, _):
            return header

    def read(self, name: str) -> npt.NDArray[Any]:
        """Read an array: as many bytes as its header says, whatever the file has.

        Raises:
            NotPlainArrays: As for `header`.
            MemoryError: It does not fit in the memory of this process.
        """
        with self._member(name) as (header, column_major, stream):
            data = bytearray(header.bytes)
            view = memoryview(data)
            place = 0
            while place < len(data) and (chunk := stream.read(min(len(data) - place, 1 << 20))):
                view[place : place + len(chunk)] = chunk
                place += len(chunk)
            if place < len(data):
                raise NotPlainArrays(f"array {name!r} is cut short")
            flat = np.frombuffer(data, header.dtype)
            return flat.reshape(header.shape, order="F" if column_major else "C")

    @contextmanager
    def _member(self, name: str) -> Iterator[tuple[Header, bool, IO[bytes]]]:
        try:
            with self._archive.open(name + _SUFFIX) as stream:
                version = np.lib.format.read_magic(stream)
                if version not in _HEADERS:
                    raise NotPlainArrays(f"array {name!r} holds records")
                shape, column_major, dtype = _HEADERS[version](stream)
                if dtype.kind not in _PLAIN:
                    raise NotPlainArrays(f"array {name!r} holds {_KINDS.get(dtype.kind, 'objects of Python')}")
                yield Header(shape, dtype), column_major, stream
        except NotPlainArrays:
            raise
        except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, OSError, NotImplementedError) as error:
            raise NotPlainArrays(f"array {name!r} is damaged") from error
        except RuntimeError as error:  # of zipfile, for a member that has a password
            raise NotPlainArrays(f"array {name!r} is encrypted") from error


@contextmanager
def opened(path: Path, refusal: type[AutotuneError]) -> Iterator[ArraysFile]:
    """Open a file. What is wrong with it, or with what is read of it in the `with` block, is raised as a refusal.

    Raises:
        AutotuneError: The refusal: it cannot be read, is no NPZ file, or has no such arrays.
    """
    try:
        with open_regular(path) as file, _archive(file) as archive:
            yield ArraysFile(archive)
    except MemoryError:
        raise refusal(f"cannot read {path}: its arrays need more memory than this process may take") from None
    except OSError as error:
        raise refusal(f"cannot read {path}: {error.strerror or error}") from error
    except NotPlainArrays as error:
        raise refusal(f"cannot read {path}: {error}") from error


def _archive(file: IO[bytes]) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise NotPlainArrays("it is not an NPZ file of plain arrays; write it with numpy.savez") from error
