"""Find the linker, which turns object files into libraries."""

from __future__ import annotations

import shutil

LINKERS = ("ld", "gcc", "cc", "clang")


def find_linker() -> str | None:
    """Return the path of the first linker in PATH; None if there is none there."""
    return next(filter(None, map(shutil.which, LINKERS)), None)
