"""A folder is read again when it may have changed, and not otherwise."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from autotune.storage import watch
from autotune.storage.watch import FolderWatch, nudge


def quiet(folder: Path) -> FolderWatch:
    """A watch of a folder that has not changed for long, and was read."""
    os.utime(folder, (1e9, 1e9))
    watched = FolderWatch(folder)
    assert watched.changed()
    return watched


def test_a_new_entry_a_nudge_and_the_end_of_a_folder_are_noticed_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    watched = quiet(folder)
    assert not any(watched.changed() for _ in range(5))
    (folder / "new").mkdir()
    assert watched.changed()
    watched = quiet(folder)
    nudge(folder)
    assert watched.changed()
    nudge(tmp_path / "missing")
    watched = quiet(folder)
    (folder / "new").rmdir()
    folder.rmdir()
    assert watched.changed() and watched.changed()


def test_a_second_change_of_the_same_time_is_noticed(tmp_path: Path) -> None:
    """A file system whose clock is coarse gives both the same time."""
    watched = quiet(tmp_path)
    now = time.time()
    os.utime(tmp_path, (now, now))
    assert watched.changed()
    (tmp_path / "new").mkdir()
    os.utime(tmp_path, (now, now))
    assert watched.changed()


def test_a_folder_is_read_after_a_while_whatever_its_time_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = quiet(tmp_path)
    now = time.monotonic()
    monkeypatch.setattr(watch.time, "monotonic", lambda: now + 11)
    assert watched.changed()
    assert not watched.changed()
