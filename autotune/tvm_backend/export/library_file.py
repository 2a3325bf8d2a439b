"""The size and the digests of an exported library, by which it is known whether it is still what was written.

The mapped weights have a digest of their own. They are most of a library, and are read where they lie when the model
first runs: to read all of them before takes longer than to load the rest.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

from autotune.errors import DamagedFile, disk_problem
from autotune.regular_file import open_regular
from autotune.schema import text, whole_number

_WEIGHTS_SECTION = b".lrodata"  # where `mapped_weights.py` has them put
_ELF = b"\x7fELF\x02\x01"  # of 64 bits, the lowest byte first
_HEADER = struct.Struct("<40xQ10xHHH")  # where the sections begin, their size and count, which one has their names
_SECTION = struct.Struct("<I20xQQ24x")  # the place of its name, where it begins, its size
_CHUNK = 1 << 20
_EXPORT_AGAIN = "export the job again, or copy the folder as a whole"

Size = Annotated[int, whole_number(0)]
Digest = Annotated[str, text("", "^[0-9a-f]{64}$", "a SHA-256 in hexadecimal digits")]


@dataclass(frozen=True)
class WeightsPart:
    """The part of a library that holds the mapped weights.

    Attributes:
        first: Where it begins, in bytes.
    """

    first: Size
    bytes: Size
    sha256: Digest


@dataclass(frozen=True)
class LibraryFile:
    """A library as `report.json` describes it.

    Attributes:
        sha256: The digest of all but the mapped weights.
        weights: These; None if it has none.
    """

    bytes: Size
    sha256: Digest
    weights: WeightsPart | None = None


def described(library: Path) -> LibraryFile:
    """Describe a library as it is.

    Raises:
        OSError: It cannot be read.
    """
    with open_regular(library, buffering=0) as file:
        size = file.seek(0, 2)
        first, count = _weights_part(file)
        rest = _digest(file, (0, first), (first + count, size))
        weights = WeightsPart(first, count, _digest(file, (first, first + count))) if count else None
        return LibraryFile(size, rest, weights)


def check(library: Path, written: LibraryFile, *, weights: bool) -> None:
    """Check that a library is what an export wrote.

    Args:
        written: What the report says of it.
        weights: Whether to check the mapped weights, too. That reads all of them.

    Raises:
        DamagedFile: It is not.
        DiskProblem: It cannot be read.
    """
    try:
        fault = _fault(library, written, weights)
    except OSError as error:
        raise disk_problem("read", library, error) from error
    if fault:
        raise DamagedFile(f"{library} is damaged, or is not the library that its report describes: {fault}")


def _fault(library: Path, written: LibraryFile, weights: bool) -> str:
    part = written.weights or WeightsPart(0, 0, "")
    end = part.first + part.bytes
    with open_regular(library, buffering=0) as file:
        size = file.seek(0, 2)
        if size != written.bytes or end > size:
            return f"it has {size} bytes, and {max(written.bytes, end)} were written; {_EXPORT_AGAIN}"
        if _digest(file, (0, part.first), (end, size)) != written.sha256:
            return f"its code is not what was written; {_EXPORT_AGAIN}"
        if weights and part.bytes and _digest(file, (part.first, end)) != part.sha256:
            return f"its weights are not what was written; {_EXPORT_AGAIN}"
    return ""


def _weights_part(file: BinaryIO) -> tuple[int, int]:
    """Where the mapped weights begin in a library, and how many bytes they are; zeros if there are none."""
    file.seek(0)
    head = file.read(_HEADER.size)
    if not head.startswith(_ELF) or len(head) < _HEADER.size:
        return 0, 0
    table, entry_bytes, count, names = _HEADER.unpack(head)
    if entry_bytes != _SECTION.size or names >= count:
        return 0, 0
    file.seek(table)
    sections = list(_SECTION.iter_unpack(file.read(entry_bytes * count)))
    _, start, size = sections[names]
    file.seek(start)
    texts = file.read(size)
    return next(
        ((first, length) for place, first, length in sections if texts[place:].startswith(_WEIGHTS_SECTION + b"\0")),
        (0, 0),
    )


def _digest(file: BinaryIO, *spans: tuple[int, int]) -> str:
    """The SHA-256 of parts of a file, each from its first byte to before its end."""
    digest = hashlib.sha256()
    for first, end in spans:
        file.seek(first)
        while first < end and (chunk := file.read(min(_CHUNK, end - first))):
            digest.update(chunk)
            first += len(chunk)
    return digest.hexdigest()
