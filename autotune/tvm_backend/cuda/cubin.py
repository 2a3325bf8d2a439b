"""What a cubin, the machine code of kernels for one GPU architecture, says of itself. It is an ELF file."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.errors import DamagedFile
from autotune.storage.formats import GpuNeeds

_MAGIC = b"\x7fELF\x02\x01"
_EM_CUDA = 190
_OLD_ABI = 7  # up to it, the architecture is in the lowest byte of the flags; later in the byte above
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ATTRIBUTE = struct.Struct("<BBH")  # of `.nv.info`: format, name, and the size or the value
_OF_SYMBOL = struct.Struct("<II")
_SIZED = 4  # the format whose value follows in as many bytes as are said
_STACK = 0x11
_REGISTERS = 0x2F
_SHARED = ".nv.shared."


@dataclass(frozen=True)
class CubinKernel:
    """What one kernel needs: registers and bytes of stack of a thread, static shared memory of a block in bytes,
    with the kilobyte that later architectures reserve.

    A kernel whose registers do not suffice keeps values on the stack, which is slow.
    """

    name: str
    registers: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Cubin:
    """The architecture, such as `sm_90`, and the kernels."""

    arch: str
    kernels: tuple[CubinKernel, ...]


@dataclass(frozen=True)
class _Section:
    name: str
    offset: int
    size: int
    link: int


def read(data: bytes) -> Cubin:
    """Read a cubin.

    Raises:
        DamagedFile: this is no cubin; CUDA source, say.
    """
    if not data.startswith(_MAGIC):
        raise DamagedFile("not a cubin")
    try:
        _, machine, _, _, _, table, flags, _, _, _, size, count, names = _HEADER.unpack_from(data)
        if machine != _EM_CUDA:
            raise DamagedFile("not a cubin, but another program")
        sections = _sections(data, table, size, count, names)
        kernels = tuple(_kernels(data, sections))
    except (struct.error, IndexError, ValueError) as error:
        raise DamagedFile(f"not a whole cubin: {error}") from error
    return Cubin(f"sm_{flags & 0xFF if data[8] <= _OLD_ABI else flags >> 8 & 0xFF}", kernels)


def find(data: bytes) -> Iterator[Cubin]:
    """The cubins within other data, such as a shared library."""
    start = data.find(_MAGIC)
    while start >= 0:
        with contextlib.suppress(DamagedFile):  # the library itself
            yield read(data[start:])
        start = data.find(_MAGIC, start + 1)


def needs(data: bytes) -> GpuNeeds | None:
    """What the kernels in a library need, the most that one of them does; None if there are none."""
    kernels = [kernel for cubin in find(data) for kernel in cubin.kernels]
    if not kernels:
        return None
    return GpuNeeds(
        max(kernel.registers for kernel in kernels),
        max(kernel.stack_bytes for kernel in kernels),
        max(kernel.shared_bytes for kernel in kernels),
    )


def _sections(data: bytes, table: int, size: int, count: int, names: int) -> list[_Section]:
    strings = _SECTION.unpack_from(data, table + names * size)[4]
    sections = []
    for number in range(count):
        name, _, _, _, offset, length, link, _, _, _ = _SECTION.unpack_from(data, table + number * size)
        sections.append(_Section(_text(data, strings + name), offset, length, link))
    return sections


def _kernels(data: bytes, sections: list[_Section]) -> Iterator[CubinKernel]:
    by_name = {section.name: section for section in sections}
    symbols = by_name.get(".symtab")
    if symbols is None or ".nv.info" not in by_name:
        return
    stacks: dict[int, int] = {}
    registers: dict[int, int] = {}
    for attribute, symbol, value in _attributes(data, by_name[".nv.info"]):
        {_STACK: stacks, _REGISTERS: registers}.get(attribute, {})[symbol] = value
    for symbol, count in registers.items():
        strings = sections[symbols.link].offset
        name = _text(data, strings + _SYMBOL.unpack_from(data, symbols.offset + symbol * _SYMBOL.size)[0])
        shared = by_name.get(f"{_SHARED}{name}")
        yield CubinKernel(name, count, stacks.get(symbol, 0), shared.size if shared else 0)


def _attributes(data: bytes, section: _Section) -> Iterator[tuple[int, int, int]]:
    """The attributes of symbols in `.nv.info`: which, of which symbol, and its value."""
    position = section.offset
    end = section.offset + section.size
    while position + _ATTRIBUTE.size <= end:
        form, name, size = _ATTRIBUTE.unpack_from(data, position)
        position += _ATTRIBUTE.size
        if form != _SIZED:
            continue
        if size == _OF_SYMBOL.size:
            yield (name, *_OF_SYMBOL.unpack_from(data, position))
        position += size


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
