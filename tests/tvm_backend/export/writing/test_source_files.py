"""Source that the user has edited is told from what an export wrote, also after an export was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.tvm_backend.export.writing import files


def write(folder: Path, text: str) -> Path:
    """What an export leaves, with this text in each file."""
    folder.mkdir()
    texts = {name: f"{name} {text}" for name in (*files.SOURCE_STATIC, files.SOURCE_HEADER, files.NETWORK)}
    for name, content in texts.items():
        (folder / name).write_text(content)
    (folder / files.SUMS).write_text(files.checksums(texts))
    for name in (files.KERNELS, files.WEIGHTS):
        (folder / name).write_bytes(text.encode())
    return folder


def test_what_an_export_wrote_is_not_edited(tmp_path: Path) -> None:
    assert files.edited(tmp_path / "none") == []
    assert files.edited(write(tmp_path / "source", "one")) == []


@pytest.mark.parametrize("name", [files.NETWORK, "shim.cpp"])
def test_an_edited_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path / "source", "one") / name).write_text("edited")
    assert files.edited(tmp_path / "source") == [name]


def test_a_users_own_file_of_that_name_is_named_and_others_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert files.edited(tmp_path) == []
    (tmp_path / "main.cpp").write_text("mine")
    assert files.edited(tmp_path) == ["main.cpp"]


def test_a_file_in_place_of_the_folder_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("mine")
    assert files.edited(tmp_path / "source") == [""]


def test_a_new_export_replaces_an_earlier_one(tmp_path: Path) -> None:
    old = write(tmp_path / "source", "one")
    new = write(tmp_path / "made", "two")
    (old / "notes.txt").write_text("mine")
    files.move_source(new, old)
    assert files.edited(old) == [] and not new.exists()
    assert (old / files.NETWORK).read_text().endswith("two") and (old / "notes.txt").exists()


def test_whatever_else_was_made_in_the_folder_of_a_new_export_goes_however_deep(tmp_path: Path) -> None:
    old = write(tmp_path / "source", "one")
    new = write(tmp_path / "made", "two")
    (new / "deep").mkdir()
    dig = "import os\nfor _ in range(3000):\n  os.mkdir('deep'); os.chdir('deep')"
    subprocess.run([sys.executable, "-c", dig], cwd=new / "deep", check=True)
    files.move_source(new, old)
    assert not new.exists()


def test_whenever_it_is_killed_nothing_seems_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for moves in range(9):
        old = write(tmp_path / f"old{moves}", "one")
        new = write(tmp_path / f"made{moves}", "two")
        replace = Path.replace
        done = iter([True] * moves)

        def dies(self: Path, target: Path, replace=replace, done=done) -> Path:
            if not next(done, False):
                raise KeyboardInterrupt
            return replace(self, target)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Path, "replace", dies)
            files.move_source(new, old)
        assert files.edited(old) == []
