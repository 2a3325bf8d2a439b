"""An append-only log of JSON records that survives crashes, full disks and flipped bits.

A line is the CRC-32 of a record in eight hexadecimal digits, a space, the record as compact JSON, and a newline. The
first line is the header, which names the format and its version.

Writers hold a lock. Before they append they repair the log: they cut off an incomplete last line, which a killed writer
leaves; they move damaged lines to `<log>.damaged`; they write a lost header again. Each repair is a warning of the
logger `autotune.storage`. Readers take no lock, never wait and change nothing; they skip lines that are not whole.

A log that nobody has changed since a writer left it need not be checked again. A seal tells: the inode, the size and
the time of change. The clock of the file system ticks in milliseconds, so that two changes may have the same time.
A writer therefore sets the time itself, to microseconds. Any later change gives the file another time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from autotune.errors import DamagedFile, NewerFormat, disk_problem
from autotune.regular_file import open_regular, open_to_write, read_regular, truncate
from autotune.storage import locks
from autotune.storage.atomic import publish_bytes, sync_folder, write_all
from autotune.storage.log_lines import (
    START,
    Position,
    Record,
    decode_line,
    encode_line,
    is_sound,
    placed_lines,
    split_lines,
    still_there,
    whole_lines,
)

_LOG = logging.getLogger("autotune.storage")
_BUFFER = 1 << 20


class Seal(NamedTuple):
    """What a log looks like while nobody has changed it: its inode, its size, and its time of change in nanoseconds."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Seal:
        """Return the seal of a file as it is."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class NewLines(NamedTuple):
    """The lines after a position, without the header, each with the position after it; see `NewRecords`."""

    lines: Iterator[tuple[bytes, Position]]
    restarted: bool


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
        format: The name of its format.
        version: The newest version that is read, and that is written.
        meta: More entries for the header of a new log.

    Attributes:
        seal: What the log looked like after the last append of this object; None where that cannot be told.
    """

    __slots__ = ("_damaged_path", "_header", "_lock_path", "format", "path", "seal", "version")

    def __init__(self, path: Path, format: str, version: int, meta: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.format = format
        self.version = version
        self._header = encode_line({**(meta or {}), "format": format, "version": version})
        self._lock_path = path.with_name(path.name + ".lock")
        self._damaged_path = path.with_name(path.name + ".damaged")
        self.seal: Seal | None = None

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
    def transaction(self, sealed: Callable[[], Seal | None] | None = None) -> Iterator[Transaction]:
        """Hold the log's lock, so that nobody else appends between reading and appending.

        There is no rollback: what was appended stays. Raises what `append` raises.

        Args:
            sealed: Called under the lock; returns the seal that another writer has left, None if there is none.
        """
        with self._repaired(sealed):
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
        records: list[Record] = []
        new = self.lines_from(position)
        end = START if new.restarted else position
        for line, after in new.lines:
            end = after
            if (record := decode_line(line)) is not None:
                records.append(record)
        return NewRecords(records, end, new.restarted)

    def has(self, position: Position) -> bool:
        """Return whether a line ends at this position, and is the one that it says."""
        try:
            with open_regular(self.path, 0) as file:
                return still_there(file.fileno(), position)
        except OSError:
            return False

    def lines_from(self, position: Position) -> NewLines:
        """Return the lines that were written since an earlier read, as they stand there; a damaged one is empty.

        All lines of a log are read one by one, as they are asked for.

        Raises:
            Exception: What `read` raises, now or with a line.
        """
        if position == START:
            return NewLines(self._all_lines(), restarted=False)
        try:
            with open_regular(self.path) as file:
                if still_there(file.fileno(), position):
                    file.seek(position.offset)
                    return NewLines(iter(list(placed_lines(file, position))), restarted=False)
        except (FileNotFoundError, IsADirectoryError):
            return NewLines(iter(()), restarted=True)
        except OSError as error:
            raise disk_problem("read", self.path, error) from error
        return NewLines(self._all_lines(), restarted=True)

    def _all_lines(self) -> Iterator[tuple[bytes, Position]]:
        try:
            with open_regular(self.path, _BUFFER) as file:
                for line, position in placed_lines(file, START):
                    if position.offset > len(line) or not self._is_header(line):
                        yield line, position
        except (FileNotFoundError, IsADirectoryError):
            return
        except OSError as error:
            raise disk_problem("read", self.path, error) from error

    def _is_header(self, line: bytes) -> bool:
        record = decode_line(line)
        if record is None or "format" not in record or type(record.get("version")) is not int:
            return False
        format = record["format"]
        version = record["version"]
        if format != self.format:
            raise DamagedFile(f"{self.path} is a log of {str(format)[:40]!r} instead of {self.format!r}")
        if version > self.version:
            raise NewerFormat(
                f"{self.path} has version {version} of format {format!r}, and this autotune reads"
                f" up to version {self.version}; a newer autotune wrote it: upgrade autotune"
            )
        return True

    @contextmanager
    def _repaired(self, sealed: Callable[[], Seal | None] | None = None) -> Iterator[None]:
        """Hold the lock on a log that begins with a header and ends with a whole line."""
        with locks.exclusive(self._lock_path):
            if not self._is_as_left(sealed):
                self.seal = None
                self._repair()
            yield

    def _is_as_left(self, sealed: Callable[[], Seal | None] | None) -> bool:
        """Return whether a writer, this one or another, has left the log as it is now."""
        try:
            now = Seal.of(os.stat(self.path))
        except OSError:
            return False
        return now == self.seal or (sealed is not None and now == sealed())

    def _repair(self) -> None:
        state = self._look()
        if state.damaged or not state.headed:
            lines = whole_lines(self._content())
            damaged = [line for line in lines if not is_sound(line)]
            self._rewrite([line for line in lines if is_sound(line)], damaged, state.headed)
        elif state.torn:
            self._truncate(state.end)
        if state.torn:
            _LOG.warning("%s: cut off a torn tail of %d bytes", self.path, state.torn)

    def _look(self) -> _Look:
        """Read the log line by line, and check each."""
        headed = False
        damaged = 0
        end = 0
        try:
            with open_regular(self.path, _BUFFER) as file:
                for line, sound in split_lines(file):
                    headed = headed or (end == 0 and self._is_header(line))
                    end += len(line)
                    damaged += not sound
                return _Look(headed, damaged, end, os.fstat(file.fileno()).st_size - end)
        except (FileNotFoundError, IsADirectoryError):  # `publish_bytes` moves a folder out of the way
            return _Look(False, 0, 0, 0)
        except OSError as error:
            raise disk_problem("read", self.path, error) from error

    def _content(self) -> bytes:
        try:
            return read_regular(self.path)
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
            truncate(self.path, length)
        except OSError as error:
            raise disk_problem("repair", self.path, error) from error

    def _write(self, data: bytes) -> None:
        if data:
            self.seal = None
            self.seal = _append_durably(self.path, data, stamped=True)


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
class _Look:
    """What a log consists of."""

    headed: bool  # whether it begins with a header
    damaged: int  # how many lines are damaged
    end: int  # where the last line ends
    torn: int  # how many bytes follow, of an incomplete line


def _append_durably(path: Path, data: bytes, stamped: bool = False) -> Seal | None:
    """Append to a file. On any error it is as long as before.

    Args:
        data: What to append.
        stamped: Whether to set the time of change.

    Returns:
        The seal of the file; None where its time was not set.

    Raises:
        DiskProblem: The data could not be written.
    """
    try:
        created = not path.exists()
        with open_to_write(path) as file:
            seal = _write_or_undo(file.fileno(), data, stamped)
        if created:
            sync_folder(path.parent)
        return seal
    except OSError as error:
        raise disk_problem("append to", path, error) from error


def _write_or_undo(descriptor: int, data: bytes, stamped: bool) -> Seal | None:
    length = os.fstat(descriptor).st_size
    try:
        write_all(descriptor, data)
        seal = _stamp(descriptor) if stamped else None
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.ftruncate(descriptor, length)
        raise
    return seal


def _stamp(descriptor: int) -> Seal | None:
    """Set the time of change of a file. None where that is refused, or where the file system does not keep it."""
    now_ns = time.time_ns() // 1000 * 1000
    with suppress(OSError):  # the file may belong to another user
        os.utime(descriptor, ns=(now_ns, now_ns))
        seal = Seal.of(os.fstat(descriptor))
        return seal if seal.changed_ns == now_ns else None
    return None
