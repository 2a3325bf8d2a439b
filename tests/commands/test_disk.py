"""A disk is checked by killing a process that writes to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.commands import disk
from autotune.errors import DiskProblem
from autotune.storage import locks


def test_a_sound_disk_keeps_all_that_was_written_and_a_folder_must_take_it(tmp_path: Path) -> None:
    assert disk.check_disk(tmp_path).startswith("the disk keeps what is written: nothing lost after ")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DiskProblem, match="cannot be written to: No such file or directory"):
        disk.check_disk(tmp_path / "none")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """What a process leaves that is killed after three writes."""
    disk._log(tmp_path).append([{"number": number} for number in (1, 2, 3)])
    (tmp_path / "published").write_bytes(b"%9d\n" % 3 * 10)
    return tmp_path


def test_what_a_killed_process_leaves_is_sound_unless_a_line_that_was_acknowledged_is_missing(written: Path) -> None:
    disk._judge(written, 3)
    disk._judge(written, 2)
    with pytest.raises(DiskProblem, match="lost lines of a log: 4 were synced, 3 are there"):
        disk._judge(written, 4)


def test_a_torn_file_and_a_lock_that_outlives_its_process_are_reported(written: Path) -> None:
    with locks.exclusive(written / "lock"), pytest.raises(DiskProblem, match="still held"):
        disk._judge(written, 3)
    (written / "published").write_bytes(b"%9d\n" % 3 * 5 + b"%9d\n" % 2 * 5)
    with pytest.raises(DiskProblem, match="tore a file"):
        disk._judge(written, 3)
