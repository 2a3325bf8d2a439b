"""An append-only log of JSON records that survives crashes, full disks and flipped bits.

A line is the CRC-32 of a record in eight hexadecimal digits, a space, the record as compact JSON, and a newline. The
first line is the header, which names the format and its version.

Writers hold a lock. Before they append they repair the log: they cut off an incomplete last line, which a killed writer
leaves; they move damaged lines to `<log>.damaged`; they write a lost header again. Each repair is a warning of the
logger `autotune.storage`. Readers take no lock, never wait and change nothing; they skip lines that are not whole.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from autotune.errors import DamagedFile, NewerFormat, disk_problem
from autotune.storage import locks
from autotune.storage.atomic import publish_bytes, sync_folder, write_all

__all__ = ["START", "NewRecords", "Position", "Record", "RecordLog", "Transaction", "decode_line", "encode_line"]

Record = dict[str, Any]

_LOG = logging.getLogger("autotune.storage")
_CHECKSUM_LENGTH = 8


class Position(NamedTuple):
    """How far a reader has read: a byte offset, and the length and CRC-32 of the last line before it."""

    offset: int = 0
    last_length: int = 0
    last_checksum: int = 0


START = Position()


class NewRecords(NamedTuple):
    """The records after a position, and the position after them.

    `restarted` means that the log has changed before the given position, because it was repaired or created again.
    `records` are then all records of the log and replace those that were read before.
    """

    records: list[Record]
    position: Position
    restarted: bool


class RecordLog:
    """A log on disk. The constructor touches no file.

    A record is a JSON object without NaN or infinities.

    Args:
        path: The file.
        format: The name of its format.
        version: The newest version that is read, and that is written.
        meta: More entries for the header of a new log.
    """

    def __init__(self, path: Path, format: str, version: int, meta: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.format = format
        self.version = version
        self._header = encode_line({**(meta or {}), "format": format, "version": version})
        self._lock_path = path.with_name(path.name + ".lock")
        self._damaged_path = path.with_name(path.name + ".damaged")

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Repair the log if need be, append records, and return once they are durable.

        After an error the log holds none of the records. If the writer is killed, the log may hold the first few of
        them, each of them whole.

        Raises:
            DiskProblem: The records could not be written.
            NewerFormat: A newer autotune wrote the log.
            DamagedFile: It is a log of another format.
            TypeError, ValueError: A record is not JSON.
        """
        data = b"".join(map(encode_line, records))
        with self._repaired():
            self._write(data)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Hold the log's lock, so that nobody else appends between reading and appending.

        There is no rollback: what was appended stays. Raises what `append` raises.
        """
        with self._repaired():
            yield Transaction(self)

    def read(self) -> list[Record]:
        """Return all whole records in order, without the header. Damaged lines are skipped.

        Returns:
            The records; none if there is no log.

        Raises:
            NewerFormat: A newer autotune wrote the log.
            DamagedFile: It is a log of another format.
            DiskProblem: It cannot be read.
        """
        return self.read_from(START).records

    def read_from(self, position: Position) -> NewRecords:
        """Return the records that were written since an earlier read.

        Every record is returned exactly once, unless the log was restarted; see `NewRecords`. A log that does not
        exist has no records and ends at `START`.

        Args:
            position: `START`, or the position that the last read returned.

        Raises:
            Exception: What `read` raises.
        """
        try:
            with open(self.path, "rb") as file:
                if position != START and not _still_there(file.fileno(), position):
                    return self._parse(file.read(), START)._replace(restarted=True)
                file.seek(position.offset)
                return self._parse(file.read(), position)
        except (FileNotFoundError, IsADirectoryError):
            return NewRecords([], START, restarted=position != START)
        except OSError as error:
            raise disk_problem("read", self.path, error) from error

    def _parse(self, data: bytes, position: Position) -> NewRecords:
        scan = _scan(data)
        lines = scan.lines
        if position == START and lines and self._is_header(lines[0]):
            lines = lines[1:]
        records = [record for line in lines if (record := decode_line(line)) is not None]
        if scan.lines:
            last = scan.lines[-1]
            end = position.offset + len(data) - len(scan.torn)
            position = Position(end, len(last), zlib.crc32(last))
        return NewRecords(records, position, restarted=False)

    def _is_header(self, line: bytes) -> bool:
        record = decode_line(line)
        if record is None or "format" not in record or type(record.get("version")) is not int:
            return False
        found, version = record["format"], record["version"]
        if found != self.format:
            raise DamagedFile(f"{self.path} is a log of {found!r} instead of {self.format!r}")
        if version > self.version:
            raise NewerFormat(
                f"{self.path} has version {version} of format {found!r}, and this autotune reads"
                f" up to version {self.version}; a newer autotune wrote it: upgrade autotune"
            )
        return True

    @contextmanager
    def _repaired(self) -> Iterator[None]:
        """Hold the lock on a log that begins with a header and ends with a whole line."""
        with locks.exclusive(self._lock_path):
            self._repair()
            yield

    def _repair(self) -> None:
        scan = _scan(self._content())
        headed = bool(scan.lines) and self._is_header(scan.lines[0])
        damaged = [line for line in scan.lines if not _is_sound(line)]
        if scan.torn:
            _LOG.warning("%s: cut off a torn tail of %d bytes", self.path, len(scan.torn))
        if damaged or not headed:
            self._rewrite([line for line in scan.lines if _is_sound(line)], damaged, headed)
        elif scan.torn:
            self._truncate(sum(map(len, scan.lines)))

    def _content(self) -> bytes:
        try:
            return self.path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):  # `publish_bytes` moves a folder out of the way
            return b""
        except OSError as error:
            raise disk_problem("read", self.path, error) from error

    def _rewrite(self, sound: list[bytes], damaged: list[bytes], headed: bool) -> None:
        if damaged:
            _append_durably(self._damaged_path, b"".join(damaged))
            _LOG.warning("%s: moved %d damaged lines to %s", self.path, len(damaged), self._damaged_path)
        if sound and not headed:
            _LOG.warning("%s: wrote the lost header anew", self.path)
        publish_bytes(self.path, b"".join(sound if headed else [self._header, *sound]))

    def _truncate(self, length: int) -> None:
        try:
            os.truncate(self.path, length)
        except OSError as error:
            raise disk_problem("repair", self.path, error) from error

    def _write(self, data: bytes) -> None:
        if data:
            _append_durably(self.path, data)


class Transaction:
    """A repaired log under its lock, from `RecordLog.transaction`."""

    def __init__(self, log: RecordLog) -> None:
        self._log = log

    @cached_property
    def records(self) -> list[Record]:
        """Return all records of the log, with those appended here."""
        return self._log.read()

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append records and return once they are durable, as `RecordLog.append` does."""
        self._log._write(b"".join(map(encode_line, records)))
        self.__dict__.pop("records", None)


@dataclass(frozen=True)
class _Scan:
    """The bytes of a log: lines that end with a newline, sound or not, and the incomplete last line."""

    lines: list[bytes]
    torn: bytes


def _scan(data: bytes) -> _Scan:
    lines = [line + b"\n" for line in data.split(b"\n")]
    torn = lines.pop()[:-1]
    if not torn and lines and not _is_sound(lines[-1]):
        torn = lines.pop()
    return _Scan(lines, torn)


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line with its checksum. Raises TypeError or ValueError where it is not JSON."""
    text = json.dumps(dict(record), separators=(",", ":"), allow_nan=False).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _is_sound(line: bytes) -> bool:
    checksum = b"%08x " % zlib.crc32(line[_CHECKSUM_LENGTH + 1 : -1])
    return line.startswith(checksum)


def decode_line(line: bytes) -> Record | None:
    """Return the record of a line; None if the line is not whole."""
    if not _is_sound(line):
        return None
    try:
        record = json.loads(line[_CHECKSUM_LENGTH + 1 :])
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _still_there(descriptor: int, position: Position) -> bool:
    start = position.offset - position.last_length
    line = os.pread(descriptor, position.last_length, start)
    return len(line) == position.last_length and zlib.crc32(line) == position.last_checksum


def _append_durably(path: Path, data: bytes) -> None:
    """Append to a file. On any error it is as long as before.

    Raises:
        DiskProblem: The data could not be written.
    """
    try:
        created = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _write_or_undo(descriptor, data)
        finally:
            os.close(descriptor)
        if created:
            sync_folder(path.parent)
    except OSError as error:
        raise disk_problem("append to", path, error) from error


def _write_or_undo(descriptor: int, data: bytes) -> None:
    length = os.fstat(descriptor).st_size
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.ftruncate(descriptor, length)
        raise
