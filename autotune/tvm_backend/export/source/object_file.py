"""Read which functions an object file needs from others."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from autotune.errors import WorkerError

# What shim.cpp defines.
SHIM = frozenset(
    {
        "TVMFFIErrorSetRaisedFromCStr",
        "TVMFFIErrorSetRaisedFromCStrParts",
        "__TVMBackendAllocWorkspace",
        "__TVMBackendFreeWorkspace",
        "__TVMBackendParallelLaunch",
    }
)
_BY_LINKER = frozenset({"_GLOBAL_OFFSET_TABLE_"})
_RUNTIME = "__TVM"  # begins the names of pointers that TVM's runtime would set
_HEADER = np.dtype([("", "V40"), ("sections", "<u8"), ("", "V12"), ("count", "<u2"), ("", "V2")])
_SECTION = np.dtype(
    [("name", "<u4"), ("type", "<u4"), ("", "V16"), ("offset", "<u8"), ("size", "<u8"), ("link", "<u4"), ("", "V20")]
)
_SYMBOL = np.dtype([("name", "<u4"), ("", "V2"), ("section", "<u2"), ("", "V16")])
_SYMBOL_TABLE = 2


def missing(path: Path) -> list[str]:
    """Return the functions that an object file needs and that neither the shim nor the C library has.

    Args:
        path: The file.

    Raises:
        WorkerError: It is not an ELF object file for 64 bits.
    """
    c_library = ctypes.CDLL("libm.so.6")  # which finds the symbols of libc, too
    needed = sorted(set(_needed(path.read_bytes())) - SHIM - _BY_LINKER)
    return [name for name in needed if not hasattr(c_library, name)]


def _needed(data: bytes) -> Iterator[str]:
    """Yield the symbols that are not defined in an object, and those that TVM's runtime would set."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise WorkerError("the compiler wrote something else than an object file for 64 bits")
    header = np.frombuffer(data, _HEADER, 1)[0]
    sections = np.frombuffer(data, _SECTION, int(header["count"]), int(header["sections"]))
    for section in sections[sections["type"] == _SYMBOL_TABLE]:
        names = int(sections[section["link"]]["offset"])
        symbols = np.frombuffer(data, _SYMBOL, int(section["size"]) // _SYMBOL.itemsize, int(section["offset"]))
        for symbol in symbols[1:]:
            start = names + int(symbol["name"])
            name = data[start : data.index(b"\0", start)].decode()
            if name and (symbol["section"] == 0 or name.startswith(_RUNTIME)):
                yield name
