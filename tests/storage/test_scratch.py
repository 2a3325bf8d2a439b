"""Temporary folders that killed processes left are deleted after a day, and nothing else."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from autotune.storage.scratch import remove_old_scratch, scratch_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left(hours: float) -> Path:
    """The folder of a process that ended at once, so many hours ago."""
    before = set(Path(tempfile.gettempdir()).iterdir())
    child = os.fork()
    if child == 0:
        kept = scratch_folder("export")
        os._exit(0 if kept.name else 1)
    os.waitpid(child, 0)
    (folder,) = set(Path(tempfile.gettempdir()).iterdir()) - before
    (folder / "model.so").touch()
    return aged(folder, hours)


def aged(path: Path, hours: float) -> Path:
    os.utime(path, (time.time() - hours * 3600,) * 2)
    return path


def test_a_folder_is_there_while_it_is_used_and_a_day_longer_if_its_process_was_killed(temporary: Path) -> None:
    with scratch_folder("export") as name:
        assert Path(name).parent == temporary and "export" in name
    assert list(temporary.iterdir()) == []
    old = left(25)
    young = left(23)
    (temporary / "autotune-results").mkdir()
    aged(temporary / "autotune-results", 25)
    assert remove_old_scratch() == [old]
    assert set(temporary.iterdir()) == {young, temporary / "autotune-results"}


def test_a_link_is_left_alone(temporary: Path) -> None:
    folder = left(25)
    target = folder.rename(temporary / "mine")
    folder.symlink_to(target)
    os.utime(folder, (0, 0), follow_symlinks=False)
    assert remove_old_scratch() == []
    assert (target / "model.so").exists()
