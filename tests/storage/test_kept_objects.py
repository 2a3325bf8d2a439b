"""An object is found as it was kept, under its own key, by its own user, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.storage.kept_objects import KeptObjects

KEY = "ab" * 32
OTHER = "cd" * 32
CONTENT = b"\x7fELF\n" + bytes(1000)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptObjects:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return KeptObjects(tmp_path / "objects", 10_000)


def test_what_is_kept_is_found_again(kept: KeptObjects) -> None:
    assert kept.read(KEY) is None
    kept.add(KEY, CONTENT)
    assert kept.read(KEY) == CONTENT and kept.read(OTHER) is None
    assert [path.name for path in kept.folder.iterdir()] == [f"{KEY}.o"], "and no temporary file"


@pytest.mark.parametrize("place", [0, 31, 32, 33, -1])
def test_a_damaged_object_is_removed(kept: KeptObjects, place: int) -> None:
    kept.add(KEY, CONTENT)
    (path,) = kept.folder.iterdir()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert kept.read(KEY) is None and not path.exists()


def test_a_torn_object_is_removed(kept: KeptObjects) -> None:
    kept.add(KEY, CONTENT)
    (path,) = kept.folder.iterdir()
    path.write_bytes(path.read_bytes()[:20])
    assert kept.read(KEY) is None and not path.exists()


def test_an_object_under_the_key_of_another_is_not_taken_for_that(kept: KeptObjects) -> None:
    kept.add(KEY, CONTENT)
    (kept.folder / f"{KEY}.o").rename(kept.folder / f"{OTHER}.o")
    assert kept.read(OTHER) is None


def test_what_another_user_has_kept_is_not_taken(
    kept: KeptObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.add(KEY, CONTENT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert kept.read(KEY) is None


def test_what_was_not_used_for_longest_goes_first(kept: KeptObjects) -> None:
    for number in range(20):
        kept.add(f"{number:064x}", CONTENT)
        os.utime(kept.folder / f"{number:064x}.o", (number, number))
    assert kept.read(f"{2:064x}") == CONTENT
    kept.trim()
    left = sorted(int(path.stem, 16) for path in kept.folder.iterdir())
    assert left == [2, *range(12, 20)], "nine of 1,038 bytes each have room, and the third was just used"
    assert kept.clear() == 9 * (33 + len(CONTENT)) and not list(kept.folder.iterdir())


def test_what_is_larger_than_all_may_be_is_not_kept(kept: KeptObjects) -> None:
    KeptObjects(kept.folder, 0).add(KEY, CONTENT)
    KeptObjects(kept.folder, len(CONTENT) - 1).add(KEY, CONTENT)
    assert not kept.folder.exists()


def test_a_disk_that_cannot_be_written_to_keeps_nothing(kept: KeptObjects) -> None:
    kept.folder.write_text("no folder")
    kept.add(KEY, CONTENT)
    kept.trim()
    assert kept.read(KEY) is None
