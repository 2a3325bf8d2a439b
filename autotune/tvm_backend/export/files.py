"""Name the files that an export writes, and tell them from a user's files of the same names."""

from __future__ import annotations

import json
from pathlib import Path

from autotune.tvm_backend.export.cpp_program import FOLDER, HEADER, STATIC

LIBRARY, REPORT, SCRIPT = "model.so", "report.json", "run.py"
REPORT_FORMAT = ("autotune-report", 1)
MADE_BY = "Made by autotune"  # in the first line of the script
_HEAD = 1000


def foreign_files(folder: Path) -> list[str]:
    """Return the names of a user's own files that an export into a folder would overwrite.

    A library has no mark. It counts as written by an export if the script or the report beside it was. The folder of
    the C++ program does if the header in it was, or if no file in it would be overwritten.

    Args:
        folder: The output folder.

    Raises:
        OSError: A file in the folder cannot be read.
    """
    script, report = _marked(folder / SCRIPT), _made_report(folder / REPORT)
    library = (script or report or False) if (folder / LIBRARY).exists() else None
    found = {SCRIPT: script, REPORT: report, LIBRARY: library, FOLDER: _made_program(folder / FOLDER)}
    return [name for name, ours in found.items() if ours is False]


def _marked(path: Path) -> bool | None:
    """Return whether the first line of a text file says that an export wrote it; None if there is no such file."""
    if not path.exists():
        return None
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MADE_BY.encode() in file.read(_HEAD).split(b"\n")[0]


def _made_program(folder: Path) -> bool | None:
    there = [name for name in (*STATIC, HEADER) if (folder / name).exists()]
    if folder.is_dir() and not there:
        return None
    return bool(_marked(folder / HEADER)) if folder.exists() else None


def _made_report(path: Path) -> bool | None:
    if not path.exists():
        return None
    try:
        written = json.loads(path.read_bytes()) if path.is_file() else None
    except ValueError:
        return False
    return isinstance(written, dict) and written.get("format") == REPORT_FORMAT[0]
