"""An append-only log of JSON records that outlives crashes, full disks and flipped bits.

A line is the CRC-32 of a record in eight hexadecimal digits, a blank, the record as compact JSON,
and a newline. The first line is the header, which names the format and its version.

Writers append under a lock, and first mend what they find: a torn tail, which a killed writer
leaves, is cut off; damaged lines before it move to ``<log>.damaged``; a lost header is written
anew. Each is reported as a warning of the logger ``autotune.storage``. Readers take no lock, never
wait and change nothing: they pass over what is not whole.
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

__all__ = ["START", "Place", "Record", "RecordLog", "Tail", "Transaction"]

Record = dict[str, Any]

_LOG = logging.getLogger("autotune.storage")
_CHECKSUM_LENGTH = 8


class Place(NamedTuple):
    """How far a reader has come: a byte offset, and the last line before it, to recognise."""

    offset: int = 0
    last_length: int = 0
    last_checksum: int = 0


START = Place()


class Tail(NamedTuple):
    """What ``RecordLog.read_from`` found.

    ``restarted`` means that the log no longer is what it was up to the place given (it was mended
    or made anew): ``records`` are then all of the log's, and replace those read before.
    """

    records: list[Record]
    place: Place
    restarted: bool


class RecordLog:
    """The log at ``path``. Making one touches no file.

    ``meta`` is added to the header when the log is created. A record is a JSON object without NaN
    or infinities.
    """

    def __init__(self, path: Path, format: str, version: int, meta: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.format = format
        self.version = version
        self._header = _encode({**(meta or {}), "format": format, "version": version})
        self._lock_path = path.with_name(path.name + ".lock")
        self._damaged_path = path.with_name(path.name + ".damaged")

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add the records, and return once they are durable.

        Mends the log first. After an error the log holds none of the records; should the writer
        be killed instead, the first few of them may be there, each of them whole.

        Raises ``DiskProblem``, ``NewerFormat`` and ``DamagedFile`` (it is another format's log),
        and ``ValueError`` or ``TypeError`` for what is not JSON.
        """
        data = b"".join(map(_encode, records))
        with self._mended():
            self._write(data)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Hold the log's lock, to look at its records and append to them with no one in between.

        Raises what ``append`` raises. A transaction is no rollback: what it appended stays.
        """
        with self._mended():
            yield Transaction(self)

    def read(self) -> list[Record]:
        """All whole records, in order, without the header. No log is an empty list.

        Damage never raises. Raises ``NewerFormat``, ``DamagedFile`` for another format's log, and
        ``DiskProblem`` when the file cannot be read.
        """
        return self.read_from(START).records

    def read_from(self, place: Place) -> Tail:
        """The records wholly written since ``place``: ``START``, or that of the last ``Tail``.

        No record is passed over or given twice, except after a restart: see ``Tail``. A log that
        is not there has no records and ends at ``START``. Raises as ``read`` does.
        """
        try:
            with open(self.path, "rb") as file:
                if place != START and not _still_there(file.fileno(), place):
                    return self._parse(file.read(), START)._replace(restarted=True)
                file.seek(place.offset)
                return self._parse(file.read(), place)
        except (FileNotFoundError, IsADirectoryError):
            return Tail([], START, restarted=place != START)
        except OSError as error:
            raise disk_problem("read", self.path, error) from error

    def _parse(self, data: bytes, place: Place) -> Tail:
        scan = _scan(data)
        lines = scan.lines
        if place == START and lines and self._is_header(lines[0]):
            lines = lines[1:]
        records = [record for line in lines if (record := _decode(line)) is not None]
        if scan.lines:
            last = scan.lines[-1]
            end = place.offset + len(data) - len(scan.torn)
            place = Place(end, len(last), zlib.crc32(last))
        return Tail(records, place, restarted=False)

    def _is_header(self, line: bytes) -> bool:
        record = _decode(line)
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
    def _mended(self) -> Iterator[None]:
        """Hold the lock on a log that starts with a header and ends with a whole line."""
        with locks.exclusive(self._lock_path):
            self._mend()
            yield

    def _mend(self) -> None:
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
        except (FileNotFoundError, IsADirectoryError):  # a folder goes out of the way when the log is made anew
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
            raise disk_problem("mend", self.path, error) from error

    def _write(self, data: bytes) -> None:
        if data:
            _append_durably(self.path, data)


class Transaction:
    """A mended log under its lock, from ``RecordLog.transaction``."""

    def __init__(self, log: RecordLog) -> None:
        self._log = log

    @cached_property
    def records(self) -> list[Record]:
        """All records of the log, with those appended here."""
        return self._log.read()

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add the records, and return once they are durable; see ``RecordLog.append``."""
        self._log._write(b"".join(map(_encode, records)))
        self.__dict__.pop("records", None)


@dataclass(frozen=True)
class _Scan:
    """A log's bytes: lines that end with a newline, sound or not, and the torn tail after them."""

    lines: list[bytes]
    torn: bytes


def _scan(data: bytes) -> _Scan:
    lines = [line + b"\n" for line in data.split(b"\n")]
    torn = lines.pop()[:-1]
    if not torn and lines and not _is_sound(lines[-1]):
        torn = lines.pop()
    return _Scan(lines, torn)


def _encode(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(dict(record), separators=(",", ":"), allow_nan=False).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _is_sound(line: bytes) -> bool:
    checksum = b"%08x " % zlib.crc32(line[_CHECKSUM_LENGTH + 1 : -1])
    return line.startswith(checksum)


def _decode(line: bytes) -> Record | None:
    if not _is_sound(line):
        return None
    try:
        record = json.loads(line[_CHECKSUM_LENGTH + 1 :])
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _still_there(descriptor: int, place: Place) -> bool:
    start = place.offset - place.last_length
    line = os.pread(descriptor, place.last_length, start)
    return len(line) == place.last_length and zlib.crc32(line) == place.last_checksum


def _append_durably(path: Path, data: bytes) -> None:
    """Add ``data`` to the file; on any error it is as long as before. Raises ``DiskProblem``."""
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
