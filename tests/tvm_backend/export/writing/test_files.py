"""An export writes over what an export has made, and over nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.options import InputSpec
from autotune.storage.atomic import publish_json
from autotune.storage.formats import Entry
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.export.writing import script
from autotune.tvm_backend.export.writing.cpp_program import CppFunction, Library, sources
from autotune.tvm_backend.export.writing.files import REPORT_FORMAT, foreign_files


@pytest.fixture(params=[0, 2], ids=["one set of shapes", "two"])
def script_text(request: pytest.FixtureRequest, make_job: Callable[..., JobPaths]) -> str:
    """The script for the library of a job."""
    x = (InputSpec("x", (1, 8), "float32"),)
    spec = read_spec(make_job(entries=tuple(Entry(f"n={n}", x, (1, 2)) for n in range(request.param))))
    return script.source(spec, threads=2, rows=[{}] * len(spec.all_entries))


def test_a_new_folder_has_no_foreign_files(tmp_path: Path) -> None:
    assert foreign_files(tmp_path) == []


def test_a_folder_that_an_export_has_filled_has_no_foreign_files(tmp_path: Path, script_text: str) -> None:
    (tmp_path / "run.py").write_text(script_text)
    (tmp_path / "model.so").write_bytes(b"\x7fELF")
    publish_json(tmp_path / "report.json", *REPORT_FORMAT, {"job": 1})
    assert foreign_files(tmp_path) == []


def test_a_folder_of_an_export_that_was_killed_after_its_script_has_no_foreign_files(
    tmp_path: Path, script_text: str
) -> None:
    (tmp_path / "run.py").write_text(script_text)
    (tmp_path / "model.so").write_bytes(b"")
    assert foreign_files(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.py", "print('mine')\n# Made by autotune\n"),
        ("run.py", ""),
        ("report.json", "{}"),
        ("report.json", "not json"),
        ("model.so", "mine"),
    ],
)
def test_a_users_own_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "other.py").write_text("")
    assert foreign_files(tmp_path) == [name]


def test_a_folder_or_a_dead_link_in_its_place_is_a_users(tmp_path: Path) -> None:
    (tmp_path / "run.py").mkdir()
    (tmp_path / "report.json").mkdir()
    assert foreign_files(tmp_path) == ["run.py", "report.json"]


class TestProgram:
    def fill(self, folder: Path, names: tuple[str, ...]) -> None:
        (folder / "cpp").mkdir()
        for name, data in sources("net", Library("model.so", 1, 2), [CppFunction("main", (), ())], "0.1.0"):
            if name in names:
                (folder / "cpp" / name).write_bytes(data)

    def test_one_that_an_export_wrote_is_written_over_also_after_a_kill(self, tmp_path: Path) -> None:
        self.fill(tmp_path, ("model.h",))
        assert foreign_files(tmp_path) == []

    def test_a_users_own_program_is_named(self, tmp_path: Path) -> None:
        self.fill(tmp_path, ("main.cc",))
        assert foreign_files(tmp_path) == ["cpp"]

    def test_other_files_of_the_users_are_no_matter(self, tmp_path: Path) -> None:
        self.fill(tmp_path, ())
        (tmp_path / "cpp" / "mine.cc").write_text("")
        assert foreign_files(tmp_path) == []

    def test_a_file_in_its_place_is_a_users(self, tmp_path: Path) -> None:
        (tmp_path / "cpp").write_text("")
        assert foreign_files(tmp_path) == ["cpp"]
