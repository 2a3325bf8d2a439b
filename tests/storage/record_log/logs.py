"""A log to try things on, and what is seen of its file."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from autotune.storage.log_lines import Record
from autotune.storage.record_log import RecordLog

OLD: list[Record] = [{"n": 0}, {"n": 1, "text": "ünï\ncode"}, {"n": 2, "list": [1.5, None]}]
NEW: list[Record] = [{"n": 10}, {"n": 11}]


def log_at(path: Path, version: int = 1) -> RecordLog:
    return RecordLog(path, "trials", version, {"task": "conv"})


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def is_whole(path: Path) -> bool:
    """Whether the log is sound from the first byte to the last, header included."""
    lines = lines_of(path)
    for line in lines:
        checksum = line[:8]
        text = line[9:-1]
        if int(checksum, 16) != zlib.crc32(text) or line[-1:] != b"\n":
            return False
    header = json.loads(lines[0][9:])
    return bool(header == {"task": "conv", "format": "trials", "version": 1})
