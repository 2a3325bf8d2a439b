"""A stage file that does not fit its name or its job is damage, and no other round's work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import DamagedFile, DiskProblem
from autotune.storage import formats
from autotune.storage.formats import Candidate, StageFile, TaskSpec
from autotune.storage.job_files import checksum, read_spec, read_stage, set_aside
from autotune.storage.paths import JobPaths

TUNED = TaskSpec("conv", "0" * 16, 1, "1x8", 0.5, True)
FIXED = TaskSpec("reshape", "f" * 16, 1, "1x8", 0.0, False)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (StageFile(0, 3, "search"), "it says task 0 round 3"),
        (StageFile(1, 0, "search"), "it says task 1 round 0"),
        (StageFile(0, 0, "measure", (Candidate("ab", [], [], "../x.so"),)), "'../x.so' is no library of this round"),
    ],
)
def test_a_stage_file_that_is_not_what_its_name_says_is_damaged(
    make_job: Callable[..., JobPaths], file: StageFile, says: str
) -> None:
    paths = make_job(tasks=(TUNED, FIXED), known_at_submit=(0, 0))
    path = paths.stage(file.task, 0)
    formats.write(path, file)
    with pytest.raises(DamagedFile, match=says):
        read_stage(paths, path, read_spec(paths))


def test_what_cannot_be_set_aside_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskProblem, match=f"{tmp_path}/gone"):
        set_aside(tmp_path / "gone")


def test_a_checksum_is_the_size_and_the_crc_and_goes_on_from_another(tmp_path: Path) -> None:
    for name, data in (("first", b"1234"), ("second", b"56789")):
        (tmp_path / name).write_bytes(data)
    _, first = checksum(tmp_path / "first")
    assert checksum(tmp_path / "second", first) == (5, 0xCBF43926), "the check value of CRC-32, that of 123456789"
