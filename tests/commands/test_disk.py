"""A disk is checked by killing a process that writes to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.commands import disk
from autotune.errors import DiskProblem
from autotune.storage import locks


def test_a_sound_disk_keeps_all_that_was_written(tmp_path: Path) -> None:
    assert disk.check_disk(tmp_path).startswith("the disk keeps what is written: nothing lost after ")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """What a process leaves that is killed after three writes."""
    disk._log(tmp_path).append([{"number": number} for number in (1, 2, 3)])
    (tmp_path / "published").write_bytes(b"%9d\n" % 3 * 10)
    return tmp_path


def test_what_a_killed_process_leaves_is_sound(written: Path) -> None:
    disk._judge(written, 3)


def test_a_write_that_was_not_acknowledged_may_be_missing(written: Path) -> None:
    disk._judge(written, 2)


def test_a_line_that_was_acknowledged_and_is_missing_is_reported(written: Path) -> None:
    with pytest.raises(DiskProblem, match="lost lines of a log: 4 were synced, 3 are there"):
        disk._judge(written, 4)


def test_a_file_of_two_writes_is_reported(written: Path) -> None:
    (written / "published").write_bytes(b"%9d\n" % 3 * 5 + b"%9d\n" % 2 * 5)
    with pytest.raises(DiskProblem, match="tore a file"):
        disk._judge(written, 3)


def test_a_lock_that_outlives_its_process_is_reported(written: Path) -> None:
    with locks.exclusive(written / "lock"), pytest.raises(DiskProblem, match="still held"):
        disk._judge(written, 3)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DiskProblem, match="cannot be written to: No such file or directory"):
        disk.check_disk(tmp_path / "none")
