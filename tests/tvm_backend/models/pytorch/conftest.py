"""`words.pt2`: an embedding of `ids` (2 to 8 rows of 2 or more), times `mask`; written by torch 2.13."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORDS = Path(__file__).parents[3] / "data" / "words.pt2"
Change = Callable[[dict[str, bytes]], None]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    return Path(shutil.copy(WORDS, tmp_path / "words"))


@pytest.fixture
def spoilt(words: Path) -> Callable[[Change], Path]:
    """`words` with its members changed, by their names without the root folder."""

    def make(change: Change) -> Path:
        with zipfile.ZipFile(words) as opened:
            members = {name.partition("/")[2]: opened.read(name) for name in opened.namelist()}
        change(members)
        with zipfile.ZipFile(words, "w") as opened:
            for name, data in members.items():
                opened.writestr(f"words/{name}", data)
        return words

    return make


@pytest.fixture
def altered(spoilt: Callable[[Change], Path]) -> Callable[..., Path]:
    """`words` with a text of its program replaced."""

    def make(old: Any, new: Any) -> Path:
        def change(members: dict[str, bytes]) -> None:
            text = members["models/model.json"].decode()
            before, after = (item if isinstance(item, str) else json.dumps(item) for item in (old, new))
            assert before in text
            members["models/model.json"] = text.replace(before, after).encode()

        return spoilt(change)

    return make
