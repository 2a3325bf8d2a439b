"""Files of trials that travel between workspaces.

A file is a gzip of lines with checksums, as in `record_log.py`: a header, then each tuning log as one line that says
what it is and how many trials follow, with a line for each of them, and a last line with the counts. So a file that was
cut short, damaged or mixed up is never mistaken for a whole one.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune import schema
from autotune.errors import DamagedFile, InvalidData, NewerFormat, disk_problem
from autotune.storage.atomic import publish_bytes
from autotune.storage.device_kind import DeviceKind
from autotune.storage.formats import Trial, from_json, to_json
from autotune.storage.log_lines import Record, decode_line, encode_line
from autotune.storage.untrusted_trials import CheckTrace, check_log, check_trial

_FORMAT = ("autotune-trials-file", 1)
# What a file may hold at most: its reader takes minutes then, and no memory to speak of.
_MAX_TRIALS = 500_000
_MAX_LOGS = 20_000
_MAX_BYTES = 1 << 32
_MAX_LINE_LENGTH = 1 << 22
_AT_ONCE = 1000  # trials


@dataclass(frozen=True)
class LogTrials:
    """The trials of one tuning log.

    Attributes:
        key: The kind of device, as the name of a folder.
        task: The hash of the task.
        kind: What the key stands for; None where nobody knows.
        trials: The trials, oldest first.
        damaged: How many records could not be used.
    """

    key: str
    task: str
    kind: DeviceKind | None
    trials: Sequence[Trial]
    damaged: int = 0


@dataclass(frozen=True)
class _Head:
    """The line before the trials of a log."""

    key: str
    task: str
    count: int
    kind: DeviceKind | None = None


def write(path: Path, logs: Iterable[LogTrials]) -> None:
    """Write the trials of tuning logs to a file.

    Raises:
        DiskProblem: The file could not be written. An older one is still there, whole.
    """
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    data = b"".join(packer.compress(line) for line in _lines(logs)) + packer.flush()
    publish_bytes(path, data)


def _lines(logs: Iterable[LogTrials]) -> Iterator[bytes]:
    count = total = 0
    yield encode_line({"format": _FORMAT[0], "version": _FORMAT[1]})
    for log in logs:
        yield encode_line({"log": to_json(_Head(log.key, log.task, len(log.trials), log.kind))})
        yield from (encode_line({"trial": to_json(trial)}) for trial in log.trials)
        count += 1
        total += len(log.trials)
    yield encode_line({"end": {"logs": count, "trials": total}})


def read(path: Path, check_trace: CheckTrace) -> Iterator[LogTrials]:
    """Read a file of trials, some trials of one log at a time.

    Args:
        check_trace: Raises ValueError for a trace that is more than a schedule.

    Yields:
        The logs, a long one in pieces, each with what it says checked.

    Raises:
        DamagedFile: It is not such a file, not whole, or too large. What was yielded before is sound, but the file is
            not.
        NewerFormat: A newer autotune wrote it.
        DiskProblem: It cannot be read.
    """
    try:
        with gzip.open(path, "rb") as file:
            yield from _Reader(path, file, check_trace).logs()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedFile(
            f"{path} is not a file of trials, or is cut short ({error}); `autotune trials export` writes one"
        ) from error
    except OSError as error:
        raise disk_problem("read", path, error) from error


class _Reader:
    """Reads the lines of an open file and knows the number of the last one."""

    def __init__(self, path: Path, file: gzip.GzipFile, check_trace: CheckTrace) -> None:
        self._path = path
        self._file = file
        self._check_trace = check_trace
        self._line = 0
        self._bytes = 0

    def logs(self) -> Iterator[LogTrials]:
        self._header()
        count = 0
        total = 0
        while "log" in (record := self._next()):
            head = self._head(record["log"])
            count += 1
            total += head.count
            if total > _MAX_TRIALS or count > _MAX_LOGS:
                bounds = f"{_MAX_TRIALS} trials or {_MAX_LOGS} tasks"
                raise self._damaged(f"it holds more than {bounds}; export some jobs at a time")
            yield from self._log(head)
        if record != {"end": {"logs": count, "trials": total}}:
            raise self._damaged("neither a log nor the end of the file")
        if self._file.read(1):
            raise self._damaged("there is more after the end")

    def _header(self) -> None:
        header = self._next()
        if header.get("format") != _FORMAT[0]:
            raise DamagedFile(f"{self._path} is not a file of trials")
        if header.get("version") != _FORMAT[1]:
            raise NewerFormat(f"{self._path} was written by a newer autotune: upgrade autotune")

    def _head(self, record: object) -> _Head:
        try:
            head = schema.convert(_Head, record)
            check_log(head.key, head.task, head.kind)
            if head.count < 1:
                raise InvalidData("a log without trials")
        except InvalidData as error:
            raise self._damaged(str(error)) from error
        return head

    def _log(self, head: _Head) -> Iterator[LogTrials]:
        for first in range(0, max(1, head.count), _AT_ONCE):
            trials = [self._trial() for _ in range(min(_AT_ONCE, head.count - first))]
            yield LogTrials(head.key, head.task, head.kind, trials)

    def _trial(self) -> Trial:
        record = self._next()
        try:
            trial = from_json(Trial, record.get("trial", {}))
            check_trial(trial, self._check_trace)
        except InvalidData as error:
            raise self._damaged(str(error)) from error
        return trial

    def _next(self) -> Record:
        line = self._file.readline(_MAX_LINE_LENGTH)
        self._line += 1
        self._bytes += len(line)
        if not line:
            raise self._damaged("the file ends here")
        if self._bytes > _MAX_BYTES:
            raise self._damaged(f"it holds more than {_MAX_BYTES >> 30} GiB; export some jobs at a time")
        record = decode_line(line)
        if record is None:
            raise self._damaged("the line is not whole")
        return record

    def _damaged(self, fault: str) -> DamagedFile:
        return DamagedFile(f"{self._path}:{self._line} is damaged: {fault}")
