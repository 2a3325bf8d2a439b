"""The index of a tuning log: what planning needs of each trial, without its schedule, in a file beside the log.

The log is the only truth. The index is derived from it and may be lost, stale, torn or another log's at any time: who
finds that it does not fit reads the log instead, and the next writer makes it anew. It has a row of fixed size for each
trial of the log, in order. A row says where its record ends, and how the log looked when the row was written; it ends
with the CRC-32 of all rows so far. So the last row alone tells a writer whether the log is as it was left, and one pass
over the file tells a reader whether the rows are those that were written.

Rows are appended after the records are durable. They are not synced: after a power cut the index is made anew.
"""

from __future__ import annotations

import math
import os
import statistics
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from autotune.errors import AutotuneError
from autotune.regular_file import open_regular, read_regular
from autotune.schema import moment, positive, whole_number
from autotune.storage.atomic import publish_bytes, write_all
from autotune.storage.formats import Failure
from autotune.storage.log_lines import Position
from autotune.storage.record_log import Seal

_MAGIC = b"autotune-index-1"
# The hash; median in us, NaN for a failed trial; when; round; end, length and checksum of the record; CRC-32 of the
# job; flags; inode and time of change of the log.
_BODY = struct.Struct("<16sddqQIIIIQq")
_CHAIN = struct.Struct("<I")
_ROW = struct.Struct(_BODY.format + "I")
_DISTURBED = 2
_MAX_HASH_LENGTH = 16
# A candidate may be the fastest in the model if its logged time is at most this many times the best logged time
# of its task.
MAX_SLOWDOWN = 1.3


class IndexEntry(NamedTuple):
    """A trial without its schedule, and where its record is.

    Attributes:
        hash: The structural hash of the scheduled program.
        median_us: The median of its times in microseconds; None for a failed trial.
        at: When it was measured, in epoch seconds.
        job_crc32: The CRC-32 of the job that measured it; see `measured_by`.
        disturbed: Whether its measurement was disturbed.
        end: Where its record ends in the log.
        checksum: The CRC-32 of its record.
    """

    hash: str
    median_us: float | None
    at: float
    round: int
    job_crc32: int
    disturbed: bool
    end: int
    length: int
    checksum: int

    @property
    def position(self) -> Position:
        """Where to read on after this record."""
        return Position(self.end, self.length, self.checksum)

    def measured_by(self, job: str) -> bool:
        """Return whether the job with this folder measured it."""
        return self.job_crc32 == zlib.crc32(job.encode())


def by_time(entries: Iterable[IndexEntry]) -> list[IndexEntry]:
    """Return the trials that have a time, fastest first; of equal ones the older first."""
    return sorted((entry for entry in entries if entry.median_us), key=lambda entry: entry.median_us or 0.0)


def nearly_fastest(entries: Iterable[IndexEntry], most: int) -> list[IndexEntry]:
    """Return the trials that may be the fastest, which logged times do not tell for certain: `most` at most."""
    ranked = by_time(entries)[:most]
    return [entry for entry in ranked if (entry.median_us or 0.0) <= (ranked[0].median_us or 0.0) * MAX_SLOWDOWN]


class _Line(msgspec.Struct, gc=False):
    """What an entry is made of; schedules are not decoded."""

    hash: str
    trace: msgspec.Raw
    args: msgspec.Raw
    times_us: tuple[Annotated[float, positive()], ...]
    failure: Failure | None
    job: str
    round: Annotated[int, whole_number(0)]
    at: Annotated[float, moment()]
    disturbed: str = ""


_DECODER = msgspec.json.Decoder(_Line)
_TEXT_AT = 9  # behind the checksum


def entry_of(line: bytes, position: Position) -> IndexEntry | None:
    """Return the entry of a line of a tuning log; None if it holds no trial.

    Args:
        line: The line; empty for a damaged one.
        position: The position after it.
    """
    try:
        record = _DECODER.decode(memoryview(line)[_TEXT_AT:])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    crc32 = zlib.crc32(record.job.encode(errors="replace"))
    disturbed = bool(record.disturbed)
    median_us = statistics.median(record.times_us) if record.times_us else None
    return IndexEntry(record.hash, median_us, record.at, record.round, crc32, disturbed, *position)


def read(path: Path) -> tuple[list[IndexEntry], Seal] | None:
    """Read an index.

    Returns:
        The entries, and how the log looked when the last one was written; None if the index is not whole.
    """
    try:
        data = read_regular(path)
    except OSError:
        return None
    data = data[: _end(len(data))]
    if len(data) <= len(_MAGIC) or not data.startswith(_MAGIC):
        return None
    rows = memoryview(data)[len(_MAGIC) :]
    if not _are_chained(rows):
        return None
    try:
        return [_entry(row) for row in _ROW.iter_unpack(rows)], _seal(rows[-_ROW.size :])
    except UnicodeDecodeError:
        return None


def _are_chained(rows: memoryview) -> bool:
    """Return whether each row follows the one before it."""
    crc32 = zlib.crc32  # looked up once: this runs for each of all trials
    chain_of = _CHAIN.unpack_from
    state = 0
    for start in range(0, len(rows), _ROW.size):
        end = start + _BODY.size
        state = crc32(rows[start:end], state)
        if state != chain_of(rows, end)[0]:
            return False
    return True


def _entry(row: tuple[bytes, float, float, int, int, int, int, int, int, int, int, int]) -> IndexEntry:
    hash, middle, moment, round, end, length, checksum, job, flags, _, _, _ = row
    name = hash.rstrip(b"\0").decode("ascii")
    median_us = middle if middle > 0 else None  # NaN is not
    return IndexEntry(name, median_us, moment, round, job, bool(flags & _DISTURBED), end, length, checksum)


def _seal(row: bytes | memoryview) -> Seal:
    *_, inode, changed_ns, _ = _ROW.unpack(row)
    return Seal(inode, _ROW.unpack(row)[4], changed_ns)


def _end(size: int) -> int:
    """Return where the last whole row ends in a file of this size."""
    return size - (size - len(_MAGIC)) % _ROW.size


def last_seal(path: Path) -> Seal | None:
    """Return how the log looked when the last row was written; None if the last row is not whole."""
    with suppress(OSError), open_regular(path, 0) as file:
        size = os.fstat(file.fileno()).st_size
        row = _last_row(file.fileno(), size)
        return None if row is None else _seal(row)
    return None


def _last_row(descriptor: int, size: int) -> bytes | None:
    """Return the last row, if its checksum follows from that of the row before it."""
    if size != _end(size) or size <= len(_MAGIC):
        return None
    start = size - _ROW.size
    row = os.pread(descriptor, _ROW.size, start)
    state = 0
    if start > len(_MAGIC):
        state = _CHAIN.unpack(os.pread(descriptor, _CHAIN.size, start - _CHAIN.size))[0]
    return row if zlib.crc32(row[: _BODY.size], state) == _chain(row) else None


def _chain(row: bytes) -> int:
    return int(_CHAIN.unpack_from(row, _BODY.size)[0])


def append(path: Path, entries: Iterable[IndexEntry], before: Seal, after: Seal) -> bool:
    """Add rows to an index that fits the log as it was before these records.

    Returns:
        Whether they were added. An error may leave an index that is not whole.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        row = _last_row(descriptor, os.fstat(descriptor).st_size)
        if row is None or _seal(row) != before:
            return False
        write_all(descriptor, _rows(entries, after, _chain(row)))
    except (OSError, struct.error, ValueError):
        return False
    finally:
        os.close(descriptor)
    return True


def publish(path: Path, entries: Iterable[IndexEntry], seal: Seal) -> None:
    """Replace an index. An error is ignored, for the log says all; so is a trial that does not fit a row."""
    with suppress(AutotuneError, struct.error, ValueError):
        publish_bytes(path, _MAGIC + _rows(entries, seal, 0))


def _rows(entries: Iterable[IndexEntry], seal: Seal, state: int) -> bytes:
    rows = bytearray()
    for entry in entries:
        body = _body(entry, seal)
        state = zlib.crc32(body, state)
        rows += body + _CHAIN.pack(state)
    return bytes(rows)


def _body(entry: IndexEntry, seal: Seal) -> bytes:
    hash = entry.hash.encode("ascii")
    if len(hash) > _MAX_HASH_LENGTH or b"\0" in hash:
        raise ValueError("the hash does not fit a row")
    flags = _DISTURBED * entry.disturbed
    middle = math.nan if entry.median_us is None else entry.median_us
    place = (entry.end, entry.length, entry.checksum, entry.job_crc32)
    return _BODY.pack(hash, middle, entry.at, entry.round, *place, flags, seal.inode, seal.changed_ns)
