"""The lines of a record log: a checksum and a JSON object each. Where a line ends in a file is a position."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO, NamedTuple

Record = dict[str, Any]

_CHECKSUM_LENGTH = 8
_MAX_LINE_LENGTH = 2**24  # of bytes; a trial has some 10,000. A longer line is damaged


class Position(NamedTuple):
    """How far a reader has read: a byte offset, and the length and CRC-32 of the last line before it."""

    offset: int = 0
    last_length: int = 0
    last_checksum: int = 0


START = Position()


def split_lines(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines from here on, each with whether it is sound. An unsound line at the very end is incomplete."""
    doubtful = b""
    for line in iter(partial(file.readline, _MAX_LINE_LENGTH), b""):
        if doubtful:
            yield doubtful, False
            doubtful = b""
        whole = line.endswith(b"\n")
        if not whole and len(line) < _MAX_LINE_LENGTH:
            return
        if whole and is_sound(line):
            yield line, True
        else:
            doubtful = line


def placed_lines(file: BinaryIO, position: Position) -> Iterator[tuple[bytes, Position]]:
    """Yield the lines after a position, where the file stands, each with the position after it."""
    end = position.offset
    for line, sound in split_lines(file):
        end += len(line)
        yield (line if sound else b""), Position(end, len(line), zlib.crc32(line))


def whole_lines(data: bytes) -> list[bytes]:
    return [line for line, _ in split_lines(io.BytesIO(data))]


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line with its checksum. Raises TypeError or ValueError where it is not JSON."""
    text = json.dumps(dict(record), separators=(",", ":"), allow_nan=False).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def is_sound(line: bytes) -> bool:
    checksum = b"%08x " % zlib.crc32(line[_CHECKSUM_LENGTH + 1 : -1])
    return line.startswith(checksum)


def decode_line(line: bytes) -> Record | None:
    """Return the record of a line; None if the line is not whole."""
    if not is_sound(line):
        return None
    try:
        record = json.loads(line[_CHECKSUM_LENGTH + 1 :])
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def still_there(descriptor: int, position: Position) -> bool:
    start = position.offset - position.last_length
    line = os.pread(descriptor, position.last_length, start)
    return len(line) == position.last_length and zlib.crc32(line) == position.last_checksum
