"""What decides what a program is compiled to: the versions of TVM's packages, and all files of our compiler."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

from autotune.version import TESTED_TVM, __version__

_COMPILERS = (".py", ".ll", ".c", ".cc", ".cpp", ".h", ".json", ".txt")


@lru_cache(maxsize=1)
def compiler_digest() -> str:
    """Return the digest of what compiles a library and writes it. It takes 10 ms, once in a process."""
    whole = hashlib.sha256(json.dumps([__version__, TESTED_TVM]).encode())
    for name, content in sorted(files_of(resources.files(__package__))):
        whole.update(f"{name}\0{len(content)}\0".encode())
        whole.update(content)
    return whole.hexdigest()


def files_of(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    """Return the files below a folder that decide, by name."""
    files = list[tuple[str, bytes]]()
    for item in folder.iterdir():
        name = f"{prefix}/{item.name}"
        if item.is_dir():
            files += files_of(item, name)
        elif item.name.endswith(_COMPILERS):
            files.append((name, item.read_bytes()))
    return files
