"""The one registry of a user's exports: which folder has a library for which model.

Programs that open a model look there for its library. An entry only names the folder, whose report says what the
library is and what it was made of. Each is a file of its own, so that several exports may register at the same time.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import StorageError
from autotune.ownership import intruder
from autotune.storage import formats
from autotune.storage.model_digest import ModelDigest
from autotune.storage.paths import registry_folder
from autotune.storage.private_folders import private_folder

_NAME_DIGITS = 16


@dataclass(frozen=True)
class RegisteredExport:
    """An export that was registered.

    Attributes:
        folder: The absolute path of what it wrote.
    """

    FORMAT = ("autotune-registered", 1)

    folder: str
    digest: ModelDigest


def register(folder: Path, digest: ModelDigest) -> None:
    """Add an export to the registry. Another model that the same folder was registered for before goes.

    Args:
        folder: What the export wrote.

    Raises:
        DiskProblem: The registry cannot be written to, or others may write to it.
    """
    root = registry_folder()
    private_folder(root)
    whole = str(folder.resolve())
    for old in root.glob(f"*-{_short(whole)}.json"):
        old.unlink(missing_ok=True)
    formats.write(root / f"{digest.bytes}-{_short(whole)}.json", RegisteredExport(whole, digest))


def registered(size: int) -> list[Path]:
    """Return the folders that are registered for models of a size in bytes.

    There is none where others may write to the registry. Entries that cannot be read are left out.
    """
    root = registry_folder()
    folders = []
    with suppress(OSError):
        if not intruder(root):
            for path in sorted(root.glob(f"{size}-*.json")):
                with suppress(StorageError, FileNotFoundError):
                    folders.append(Path(formats.read(RegisteredExport, path).folder))
    return folders


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS]
