"""A tree is walked and deleted whatever somebody has made in it; what a link leads to is left alone."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.storage.trees import discard_tree, remove_tree, walk

DEEP = 3000
NOBODY = 65534


def deep(top: Path, name: str = "deep") -> None:
    """Make folders in each other, with a file in the last one."""
    top.mkdir(exist_ok=True)
    script = (
        f"import os\nfor _ in range({DEEP}):\n  os.mkdir({name!r}); os.chdir({name!r})\nopen('last', 'w').write('xx')"
    )
    subprocess.run([sys.executable, "-c", script], cwd=top, check=True)


@contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_tree_deeper_than_paths_and_descriptors_reach_is_walked_and_deleted(tmp_path: Path) -> None:
    top = tmp_path / "top"
    deep(top)
    with few_descriptors(more=6):
        entries = [(entry.name, entry.depth, entry.is_folder) for entry in walk(top)]
        assert entries[0] == ("last", DEEP, False) and entries[-1] == ("deep", 0, True) and len(entries) == DEEP + 1
        remove_tree(top)
    assert not top.exists()


def test_folders_come_behind_what_is_in_them_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/y", "b/x", "a/z"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "c").write_text("12")
    assert [entry.name for entry in walk(tmp_path)] == ["z", "a", "x", "y", "b", "c"]
    assert [entry.status.st_size for entry in walk(tmp_path)][-1] == 2


def test_a_link_is_deleted_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    top = tmp_path / "top"
    top.mkdir()
    (top / "folder").symlink_to(kept)
    (top / "file").symlink_to(kept / "file")
    assert [entry.is_folder for entry in walk(top)] == [False, False]
    remove_tree(top)
    assert (kept / "file").read_text() == "x" and not top.exists()
    link = tmp_path / "link"
    link.symlink_to(kept)
    with pytest.raises(OSError):
        remove_tree(link)
    assert (kept / "file").exists()


def test_folders_that_their_owner_has_closed_are_deleted() -> None:
    """As somebody who is not root, whom no permission keeps out."""
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o777)
        child = multiprocessing.get_context("fork").Process(target=_delete_closed_folders, args=(Path(top, "mine"),))
        child.start()
        child.join(60)
        assert child.exitcode == 0 and not Path(top, "mine").exists()


def _delete_closed_folders(here: Path) -> None:
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    (here / "a/b").mkdir(parents=True)
    (here / "a/b/c").write_text("")
    (here / "a/b").chmod(0)
    (here / "a").chmod(0o500)
    here.chmod(0)
    remove_tree(here)


def test_what_cannot_be_deleted_is_said_and_the_rest_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "top" / name).mkdir(parents=True)
    rmdir = os.rmdir

    def refused(path: str, *, dir_fd: int | None = None) -> None:
        if path == "b":
            raise PermissionError(1, "Operation not permitted")
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", refused)
    with caplog.at_level(logging.WARNING):
        assert not discard_tree(tmp_path / "top")
    assert [path.name for path in (tmp_path / "top").iterdir()] == ["b"]
    assert f"{tmp_path / 'top'} could not be deleted (Operation not permitted)" in caplog.text
    with pytest.raises(PermissionError):
        remove_tree(tmp_path / "top")


def test_what_is_not_there_is_discarded_already(tmp_path: Path) -> None:
    assert discard_tree(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "none")


def test_a_tree_that_is_moved_while_it_is_read_is_left(tmp_path: Path) -> None:
    """Else the walk would go on where the folder is now."""
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    entries = walk(tmp_path / "top")
    assert next(entries).name == "b"
    os.rename(tmp_path / "top" / "a", tmp_path / "elsewhere" / "a")
    with pytest.raises(OSError, match="moved"):
        list(entries)
