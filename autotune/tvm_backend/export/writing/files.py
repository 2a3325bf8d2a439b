"""Name the files that an export writes, and tell them from a user's files of the same names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.storage.export_lock import LOCK, ExportLock
from autotune.storage.trees import remove_tree
from autotune.tvm_backend.export.loadable import LIBRARY, REPORT
from autotune.tvm_backend.export.writing.cpp_program import CHECKS, FOLDER, HEADER, LANGUAGE, STATIC

SCRIPT = "run.py"
TOKENIZER = "tokenizer.json"  # of a language model
SOURCE = "source"  # the folder with the network as C++ source, and the files in it
POOL = "pool.c"
SOURCE_STATIC = ("CMakeLists.txt", *CHECKS, "main.cpp", POOL, "shim.cpp", "shim.h")
SOURCE_HEADER = "model.h"
NETWORK = "network.cpp"
KERNELS = "kernels.o"
WEIGHTS = "weights.bin"
SUMS = "SHA256SUMS"
REPORT_FORMAT = ("autotune-report", 1)
MADE_BY = "Made by autotune"  # in the first line of the script
_HEAD = 1000


def written(folder: Path, report: Mapping[str, Any]) -> list[str]:
    """Return the paths of the files that an export wrote to a folder, in the order in which they are published.

    Args:
        folder: The folder, which may have other files besides.
    """
    names = [SCRIPT, LIBRARY, *([TOKENIZER] if report.get("language") else [])]
    names += [f"{FOLDER}/{name}" for name in (*STATIC, *LANGUAGE, HEADER)]
    if report.get("source"):
        texts = (*SOURCE_STATIC, SOURCE_HEADER, NETWORK)
        names += [f"{SOURCE}/{name}" for name in (SUMS, KERNELS, WEIGHTS, *texts)]
    return [name for name in (*names, LOCK, REPORT) if (folder / name).exists()]


def foreign_files(folder: Path) -> list[str]:
    """Return the names of a user's own files that an export into a folder would overwrite.

    A library has no mark, nor has a tokenizer. They count as written by an export if the script
    or the report beside them was. The folder of
    the C++ program does if the header in it was, or if no file in it would be overwritten.

    Args:
        folder: The output folder.

    Raises:
        OSError: A file in the folder cannot be read.
    """
    script = _marked(folder / SCRIPT)
    report = _made_json(folder / REPORT, REPORT_FORMAT[0])
    library, tokenizer = (
        (script or report or False) if (folder / name).exists() else None for name in (LIBRARY, TOKENIZER)
    )
    marks = {
        SCRIPT: script,
        REPORT: report,
        LIBRARY: library,
        TOKENIZER: tokenizer,
        FOLDER: _made_program(folder / FOLDER),
        LOCK: _made_json(folder / LOCK, ExportLock.FORMAT[0]),
    }
    return [name for name, ours in marks.items() if ours is False]


def _marked(path: Path) -> bool | None:
    """Return whether the first line of a text file says that an export wrote it; None if there is no such file."""
    if not path.exists():
        return None
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MADE_BY.encode() in file.read(_HEAD).split(b"\n")[0]


def _made_program(folder: Path) -> bool | None:
    there = [name for name in (*STATIC, *LANGUAGE, HEADER) if (folder / name).exists()]
    if folder.is_dir() and not there:
        return None
    return bool(_marked(folder / HEADER)) if folder.exists() else None


def _made_json(path: Path, format: str) -> bool | None:
    if not path.exists():
        return None
    try:
        written = json.loads(path.read_bytes()) if path.is_file() else None
    except ValueError:
        return False
    return isinstance(written, dict) and written.get("format") == format


def checksums(texts: Mapping[str, str]) -> str:
    """Return what the sha256sum command prints for files with these texts."""
    return "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(texts.items()))


def edited(folder: Path) -> list[str]:
    """Return the names of the files in a folder that the user has written or changed, and that would be overwritten.

    Args:
        folder: The folder of the source. It need not exist.

    Raises:
        OSError: A file cannot be read.
    """
    if not folder.is_dir():
        return [""] if folder.exists() else []
    sums = folder / SUMS
    made = {line[66:]: line[:64] for line in sums.read_text().splitlines()} if sums.is_file() else {}
    texts = [name for name in (*SOURCE_STATIC, SOURCE_HEADER, NETWORK) if (folder / name).exists()]
    return [name for name in texts if made.get(name) != hashlib.sha256((folder / name).read_bytes()).hexdigest()]


def move_source(made: Path, to: Path) -> None:
    """Move the files of a source into the folder where users find it, which may have those of an earlier export.

    The texts of an earlier export go before its sums do, and new texts come after theirs. So a text that is there never
    counts as changed by the user because an export was interrupted.

    Args:
        made: The folder that `write_source` wrote, on the same disk.
    """
    to.mkdir(exist_ok=True)
    for name in (*SOURCE_STATIC, SOURCE_HEADER, NETWORK):
        (to / name).unlink(missing_ok=True)
    for name in (SUMS, KERNELS, WEIGHTS, *SOURCE_STATIC, SOURCE_HEADER, NETWORK):
        (made / name).replace(to / name)
    remove_tree(made)
