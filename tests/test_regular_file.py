"""A file is read; a pipe or a device in its place is refused at once, whoever put it there."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import ConfigError, DiskProblem
from autotune.network_plan.plan import read as read_plan
from autotune.regular_file import open_regular, read_regular
from autotune.storage.seals import file_digest
from autotune.storage.tuning_log import TuningLog


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def test_a_file_is_read_and_told_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\ntwo\n")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file") == b"one\ntwo\n"
    with open_regular(tmp_path / "link", 0) as file:
        assert file.readline() == b"one\n"
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)


@pytest.mark.parametrize("put", [os.mkfifo, endless])
def test_what_has_no_end_is_refused_at_once(tmp_path: Path, put: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    put(path)
    opened = len(os.listdir("/proc/self/fd"))
    for read in (read_regular, file_digest):
        with pytest.raises(OSError, match="it is a pipe or a device"):
            read(path)
    with pytest.raises(DiskProblem, match=f"cannot read {path}: it is a pipe or a device"):
        TuningLog(path).entries()
    with pytest.raises(DiskProblem, match=f"cannot read {path}: it is a pipe or a device"):
        read_plan(path)
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "[" + ".".join(["a"] * 50_000) + "]"])
def test_tables_and_lists_that_are_nested_too_deeply_are_said_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"plan\.toml: its tables or lists are nested too deeply"):
        read_plan(tmp_path / "plan.toml")


def test_a_bound_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"content")
    tracemalloc.start()
    try:
        assert read_regular(tmp_path / "small", 1 << 30) == b"content"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_more_than_the_bound_is_refused_and_as_much_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 2048)
    assert len(read_regular(tmp_path / "file", 2048)) == 2048
    with pytest.raises(OSError, match="is larger than"):
        read_regular(tmp_path / "file", 2047)
