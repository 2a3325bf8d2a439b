"""The files of a network's source, and which of them the user has edited."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

FOLDER = "source"
STATIC = ("CMakeLists.txt", "main.cpp", "shim.cpp", "shim.h")
HEADER, NETWORK, KERNELS, WEIGHTS, SUMS = "model.h", "network.cpp", "kernels.o", "weights.bin", "SHA256SUMS"


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
    texts = [name for name in (*STATIC, HEADER, NETWORK) if (folder / name).exists()]
    return [name for name in texts if made.get(name) != hashlib.sha256((folder / name).read_bytes()).hexdigest()]


def move_source(made: Path, to: Path) -> None:
    """Move the files of a source into the folder where users find it, which may have those of an earlier export.

    The texts of an earlier export go before its sums do, and new texts come after theirs. So a text that is there never
    counts as changed by the user because an export was interrupted.

    Args:
        made: The folder that `write_source` wrote, on the same disk.
        to: The folder.
    """
    to.mkdir(exist_ok=True)
    for name in (*STATIC, HEADER, NETWORK):
        (to / name).unlink(missing_ok=True)
    for name in (SUMS, KERNELS, WEIGHTS, *STATIC, HEADER, NETWORK):
        (made / name).replace(to / name)
    shutil.rmtree(made)
