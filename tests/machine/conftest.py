"""Small trees that stand for /proc and /sys of other machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Plant = Callable[[Mapping[str, object]], Path]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Writes files under a folder of its own and returns that folder."""

    def write(files: Mapping[str, object]) -> Path:
        root = tmp_path / "root"
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return root

    return write
