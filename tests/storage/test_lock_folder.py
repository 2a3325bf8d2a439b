"""The folder of locks can be shared by all users of the machine, and by nobody else's files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import LockFolderProblem, StorageError
from autotune.storage import locks
from autotune.storage.locks import (
    ensure_lock_folder,
    try_lock,
)

from .locking_children import Child

NOBODY = 65534


class TestLockFolder:
    def test_it_is_made_open_to_all_and_sticky_whatever_umask_says_and_then_left_as_it_is(self, tmp_path: Path) -> None:
        before = os.umask(0o077)
        try:
            ensure_lock_folder(tmp_path / "locks")
        finally:
            os.umask(before)
        assert (tmp_path / "locks").stat().st_mode & 0o7777 == 0o1777
        (tmp_path / "locks" / "cpu0").touch()
        ensure_lock_folder(tmp_path / "locks")
        assert os.listdir(tmp_path) == ["locks"] and os.listdir(tmp_path / "locks") == ["cpu0"]

    def test_another_process_may_be_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "locks"
        rename = os.rename

        def late(source: Path, target: Path) -> None:
            folder.mkdir()
            (folder / "cpu0").touch()
            folder.chmod(0o1777)
            rename(source, target)

        monkeypatch.setattr(os, "rename", late)
        ensure_lock_folder(folder)
        assert os.listdir(tmp_path) == ["locks"]
        assert os.listdir(folder) == ["cpu0"]

    def test_what_is_no_folder_is_refused(self, tmp_path: Path) -> None:
        folder = tmp_path / "locks"
        folder.symlink_to("elsewhere")
        with pytest.raises(StorageError, match="symbolic link"):
            ensure_lock_folder(folder)
        (tmp_path / "elsewhere").mkdir(mode=0o1777)
        with pytest.raises(StorageError, match="symbolic link"):
            ensure_lock_folder(folder)
        folder.unlink()
        folder.touch()
        with pytest.raises(StorageError, match="not a folder"):
            ensure_lock_folder(folder)
        with pytest.raises(LockFolderProblem, match="cannot make the lock folder"):
            ensure_lock_folder(folder / "locks")

    @pytest.mark.parametrize(
        ("owner", "mode", "accepted"),
        [
            ("self", 0o755, True),
            ("self", 0o777, False),
            ("self", 0o1777, True),
            ("other", 0o755, False),
            ("other", 0o1777, True),
        ],
    )
    def test_a_folder_whose_files_another_user_could_swap_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, mode: int, accepted: bool
    ) -> None:
        folder = tmp_path / "locks"
        folder.mkdir()
        folder.chmod(mode)
        if owner == "other":
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        if accepted:
            ensure_lock_folder(folder)
        else:
            with pytest.raises(StorageError, match="chmod 1777"):
                ensure_lock_folder(folder)
        assert folder.stat().st_mode & 0o7777 == mode

    @pytest.fixture
    def public(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp())
        folder.chmod(0o1777)
        yield folder / "locks"
        shutil.rmtree(folder)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
    @pytest.mark.parametrize("first", ["root", "nobody"])
    def test_two_users_share_locks_whoever_was_first(self, public: Path, first: str) -> None:
        def take(user: str) -> bool:
            os.umask(0o077)
            if user == "nobody":
                os.setuid(NOBODY)
            ensure_lock_folder(public)
            global kept
            kept = try_lock(public / "cpu0")
            return kept is not None

        second = "nobody" if first == "root" else "root"
        one = Child(lambda: take(first))
        assert one.said == "True"
        two = Child(lambda: take(second))
        assert two.said == "False"
        one.kill()
        two.kill()
        three = Child(lambda: take(second))
        assert three.said == "True"
        three.kill()


kept: locks.Lease | None = None
