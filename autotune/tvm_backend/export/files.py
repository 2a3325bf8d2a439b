"""The files that an export hands over, and how they are told from files of the same name that a user has made."""

from __future__ import annotations

import json
from pathlib import Path

LIBRARY, REPORT, SCRIPT = "model.so", "report.json", "run.py"
REPORT_FORMAT = ("autotune-report", 1)
MADE_BY = "Made by autotune"  # in the first line of the script
_HEAD = 1000


def foreign_files(folder: Path) -> list[str]:
    """The files in a folder that an export would write over and that no export has made.

    A library has no mark of its own: it is ours if the script or the report beside it is.

    Raises:
        OSError: one of them cannot be read.
    """
    script, report = _made_script(folder / SCRIPT), _made_report(folder / REPORT)
    library = (script or report or False) if (folder / LIBRARY).exists() else None
    found = {SCRIPT: script, REPORT: report, LIBRARY: library}
    return [name for name, ours in found.items() if ours is False]


def _made_script(path: Path) -> bool | None:
    """Whether an export made it; None where there is no such file."""
    if not path.exists():
        return None
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MADE_BY.encode() in file.read(_HEAD).split(b"\n")[0]


def _made_report(path: Path) -> bool | None:
    if not path.exists():
        return None
    try:
        written = json.loads(path.read_bytes()) if path.is_file() else None
    except ValueError:
        return False
    return isinstance(written, dict) and written.get("format") == REPORT_FORMAT[0]
