"""A GGUF file, read as data: what it says of the model, and where its tensors are.

Nothing in it is believed before it was checked: a length is compared with what is left of the file before anything of
that length is read, and each tensor has to lie in the file, apart from the others.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.errors import ModelError, one_line
from autotune.regular_file import open_regular
from autotune.tvm_backend.models.gguf.element_formats import FORMATS, ElementFormat

MAGIC = b"GGUF"
Value = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]
_VERSIONS = (2, 3)
# How numbers are stored, by the number of their type.
_NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING = 8
_ARRAY = 9
_MAX_DIMENSIONS = 4
_MAX_NAME = 1 << 10  # bytes
_MAX_TENSORS = 1 << 16
_MAX_KEYS = 1 << 16
_MAX_ALIGNMENT = 1 << 16
_ALIGNMENT = "general.alignment"
_MIN_ENTRY = 8 + 4 + 8 + 4 + 8  # bytes of what says where a tensor is


class _Malformed(ValueError):
    """The file is no GGUF file, or a damaged one. The message says why."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor is.

    Attributes:
        shape: Its sizes, the outermost first, as in NumPy: the file has them the other way round.
        format: How its elements are stored.
        start: The byte of the file in which it begins.
    """

    name: str
    shape: tuple[int, ...]
    format: ElementFormat
    start: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) // self.format.elements * self.format.bytes


class GgufFile:
    """A GGUF file. It is mapped into memory, and read where it is needed.

    Args:
        path: The file.

    Attributes:
        path: The file.
        size: How many bytes it has.
        values: What it says of the model, by key.
        tensors: Its tensors by name.

    Raises:
        ModelError: It cannot be read, is damaged, or has a tensor whose elements are stored in a way that is not known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: it is empty
            raise ModelError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
        self.size = len(self._data)
        try:
            reader = _Reader(self._data)
            counts = reader.head()
            self.values: Mapping[str, Value] = reader.pairs(counts[1])
            self.tensors: Mapping[str, Tensor] = reader.tensors(counts[0], self.values)
        except _Malformed as error:
            raise ModelError(f"{path} is a damaged GGUF file: {error}") from error

    def raw(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor, a row of them for each row of it. They are not copied."""
        data = np.frombuffer(self._data, np.uint8, tensor.bytes, tensor.start)
        return data.reshape(math.prod(tensor.shape[:-1]), -1)


def is_gguf(path: Path) -> bool:
    """Return whether a file begins as a GGUF file does; False if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class _Reader:
    """Reads from the beginning of a file on."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._place = len(MAGIC)

    def head(self) -> tuple[int, int]:
        """Return how many tensors there are, and how many values."""
        if self._data[: len(MAGIC)] != MAGIC:
            raise _Malformed(f"it does not begin with {MAGIC.decode()}")
        version = int(self._number("<I"))
        if version not in _VERSIONS:
            raise _Malformed(f"it is of version {version}; known are {' and '.join(map(str, _VERSIONS))}")
        tensors = int(self._number("<Q"))
        pairs = int(self._number("<Q"))
        if tensors > _MAX_TENSORS or pairs > _MAX_KEYS:
            raise _Malformed(f"it says that it has {tensors} tensors and {pairs} values")
        return tensors, pairs

    def pairs(self, count: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for _ in range(count):
            key = self._string(_MAX_NAME)
            if key in values:
                raise _Malformed(f"the key {_shown(key)} is there twice")
            values[key] = self._value(int(self._number("<I")))
        return values

    def tensors(self, count: int, values: Mapping[str, Value]) -> dict[str, Tensor]:
        if count * _MIN_ENTRY > self._left:
            raise _Malformed(f"it says that it has {count} tensors, and ends before them")
        alignment = values.get(_ALIGNMENT, 32)
        if not isinstance(alignment, int) or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise _Malformed(f"{_ALIGNMENT} is {str(alignment)[:40]}, and not a power of two up to {_MAX_ALIGNMENT}")
        entries = [self._tensor(alignment) for _ in range(count)]
        begin = -(-self._place // alignment) * alignment
        placed = [Tensor(item.name, item.shape, item.format, begin + item.start) for item in entries]
        _check_places(placed, len(self._data))
        by_name = {item.name: item for item in placed}
        if len(by_name) < len(placed):
            raise _Malformed("two tensors have the same name")
        return by_name

    def _tensor(self, alignment: int) -> Tensor:
        name = self._string(_MAX_NAME)
        shown = _shown(name)
        rank = int(self._number("<I"))
        if not 0 < rank <= _MAX_DIMENSIONS:
            raise _Malformed(f"tensor {shown} has {rank} dimensions")
        shape = tuple(int(self._number("<Q")) for _ in range(rank))[::-1]
        number = int(self._number("<I"))
        if number not in FORMATS:
            names = ", ".join(item.name for item in FORMATS.values())
            raise _Malformed(f"tensor {shown} is of type {number}, which is not known; known are {names}")
        kind = FORMATS[number]
        start = int(self._number("<Q"))
        if min(shape) < 1 or math.prod(shape) > 8 * len(self._data):  # an element has a bit at least
            raise _Malformed(f"tensor {shown} cannot have the shape {shape}")
        if shape[-1] % kind.elements:
            raise _Malformed(f"the rows of tensor {shown} have {shape[-1]} elements, no multiple of {kind.elements}")
        if start % alignment:
            raise _Malformed(f"tensor {shown} begins at byte {start}, no multiple of {alignment}")
        return Tensor(name, shape, kind, start)

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(int(self._number("<I")), int(self._number("<Q")))
        return self._number(_number_type(kind))

    def _array(self, kind: int, count: int) -> Value:
        if kind == _STRING:
            if count * 8 > self._left:
                raise _Malformed(f"a list of {count} texts ends after the file")
            return [self._string() for _ in range(count)]
        item = np.dtype(_number_type(kind))
        data = self._bytes(count * item.itemsize)
        return list(np.frombuffer(data, item).tolist())

    def _number(self, written: str) -> int | float | bool:
        (number,) = struct.unpack(written, self._bytes(struct.calcsize(written)))
        return number  # type: ignore[no-any-return]

    def _string(self, most: int | None = None) -> str:
        size = int(self._number("<Q"))
        if most is not None and size > most:
            raise _Malformed(f"a name has {size} bytes")
        try:
            return self._bytes(size).decode()
        except UnicodeDecodeError as error:
            raise _Malformed(f"a text near byte {self._place} is no UTF-8") from error

    @property
    def _left(self) -> int:
        return len(self._data) - self._place

    def _bytes(self, size: int) -> bytes:
        if size > self._left:
            raise _Malformed(f"it ends at byte {len(self._data)}, in the middle of {size} bytes")
        self._place += size
        return self._data[self._place - size : self._place]


def _number_type(kind: int) -> str:
    if kind not in _NUMBERS:
        raise _Malformed(f"a value is of type {kind}, which is not known")
    return _NUMBERS[kind]


def _check_places(tensors: list[Tensor], size: int) -> None:
    """Make sure that all tensors lie in a file of a size, and none in another."""
    end = 0
    before = ""
    for item in sorted(tensors, key=lambda item: item.start):
        if item.start + item.bytes > size:
            raise _Malformed(f"tensor {_shown(item.name)} ends after the file, which has {size} bytes: it was cut")
        if item.start < end:
            raise _Malformed(f"tensors {_shown(before)} and {_shown(item.name)} overlap")
        end = item.start + item.bytes
        before = item.name


def _shown(name: str) -> str:
    return repr(one_line(name))
