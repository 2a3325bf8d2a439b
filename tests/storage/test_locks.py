"""Locks exclude, end with their holder, and can be shared by all users of the machine."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pytest

from autotune.errors import DiskProblem
from autotune.ownership import owner_name
from autotune.storage import locks
from autotune.storage.locks import (
    Busy,
    acquire_all,
    exclusive,
    sole_writer,
    try_lock,
)

from .locking_children import Child, forked, is_free


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.lock"


class TestExclusive:
    def test_it_is_held_inside_the_block_only_though_the_block_fails(self, path: Path) -> None:
        with exclusive(path):
            assert not is_free(path)
        assert is_free(path)
        assert path.exists()
        with pytest.raises(ZeroDivisionError), exclusive(path):
            _ = 1 / 0
        assert is_free(path)

    def test_a_held_lock_is_busy_after_the_timeout(self, path: Path) -> None:
        child = Child(lambda: try_lock(path))
        for timeout_s in (0, 0.05):
            started = time.monotonic()
            with pytest.raises(Busy, match=r"a\.lock is locked"), exclusive(path, timeout_s):
                pytest.fail("was not busy")
            assert time.monotonic() - started >= timeout_s
        child.kill()

    def test_it_waits_until_the_holder_is_done(self, path: Path) -> None:
        child = Child(lambda: try_lock(path))
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            child.kill()

        threading.Timer(0.1, kill).start()
        with exclusive(path, 10):
            assert killed.is_set(), "two held the lock"

    def test_two_threads_are_never_inside_together(self, path: Path) -> None:
        inside = 0
        most = 0

        def enter() -> None:
            nonlocal inside, most
            for _ in range(5):
                with exclusive(path):
                    inside += 1
                    most = max(most, inside)
                    time.sleep(0.001)
                    inside -= 1

        threads = [threading.Thread(target=enter) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == 1

    def test_taking_it_twice_in_one_thread_fails_instead_of_hanging(self, path: Path) -> None:
        with exclusive(path):
            assert try_lock(path) is None
            with pytest.raises(RuntimeError), exclusive(path):
                pytest.fail("was not refused")

    def test_a_missing_folder_is_a_disk_problem(self, tmp_path: Path) -> None:
        missing = tmp_path / "no" / "a.lock"
        with pytest.raises(DiskProblem, match="cannot lock .* no such file"), exclusive(missing):
            pytest.fail("was not refused")
        assert not missing.parent.exists()


class TestDeath:
    def test_a_stopped_holder_keeps_its_lock_and_the_kernel_releases_that_of_a_killed_one(self, path: Path) -> None:
        child = Child(lambda: try_lock(path))
        os.kill(child.pid, signal.SIGSTOP)
        assert not is_free(path)
        child.kill()
        assert is_free(path)


class TestFork:
    def test_a_forked_child_can_neither_release_nor_take_nor_keep_its_parents_lock(self, path: Path) -> None:
        lease = try_lock(path)
        assert lease is not None
        for action in (lease.release, lambda: try_lock(path)):
            child = Child(action)
            assert child.said == "None" and not is_free(path)
            child.kill()
            assert not is_free(path)
        child = Child(lambda: "alive")
        lease.release()
        assert is_free(path)
        child.kill()

    def test_a_subprocess_does_not_keep_the_lock(self, path: Path) -> None:
        with exclusive(path):
            process = subprocess.Popen(["sleep", "60"], close_fds=False)
        assert is_free(path)
        process.kill()
        process.wait()


class TestLease:
    def test_all_are_taken_in_sorted_order_and_once_each_or_none(self, tmp_path: Path) -> None:
        a, b, c = (tmp_path / name for name in "abc")
        with exclusive(b):
            assert acquire_all([a, b, c]) is None
            assert is_free(a)
        with pytest.raises(DiskProblem):
            acquire_all([a, tmp_path / "no" / "b"])
        assert is_free(a)
        lease = acquire_all([c, b, a, b])
        assert lease is not None and lease.paths == (a, b, c)
        assert [is_free(path) for path in (a, b, c)] == [False] * 3
        lease.release()
        assert [is_free(path) for path in (a, b, c)] == [True] * 3
        nothing = acquire_all([])
        assert nothing is not None and nothing.paths == ()

    def test_another_thread_may_release_it_and_twice_does_not_release_the_next_holder(self, path: Path) -> None:
        first = try_lock(path)
        assert first is not None
        thread = threading.Thread(target=first.release)
        thread.start()
        thread.join()
        second = try_lock(path)
        first.release()
        assert second is not None and not is_free(path)
        del second
        assert is_free(path), "a forgotten lease is released"

    @pytest.mark.parametrize("replace", [Path.unlink, lambda path: (path.unlink(), path.touch())])
    def test_a_lease_tells_that_its_file_was_removed_or_replaced(
        self, path: Path, replace: Callable[[Path], object]
    ) -> None:
        lease = try_lock(path)
        assert lease is not None and lease.in_place()
        replace(path)
        assert not lease.in_place()

    def test_a_lease_whose_file_cannot_be_looked_at_counts_as_in_place(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = try_lock(path)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "stat", refuse)
        assert lease is not None and lease.in_place()


class TestLockFile:
    @pytest.mark.parametrize("links", ["with hard links", "without hard links"])
    def test_everyone_may_open_it_whatever_umask_says(
        self, path: Path, links: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if links == "without hard links":

            def refuse(*_: Any) -> None:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))

            monkeypatch.setattr(os, "link", refuse)
        before = os.umask(0o077)
        try:
            with exclusive(path):
                pass
        finally:
            os.umask(before)
        assert path.stat().st_mode & 0o777 == 0o666
        assert os.listdir(path.parent) == [path.name]

    def test_it_is_never_there_without_its_mode_and_the_same_for_ever(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        modes = []
        chmod = os.chmod

        def noted(target: Path, mode: int) -> None:
            modes.append(path.exists())
            chmod(target, mode)

        monkeypatch.setattr(os, "chmod", noted)
        with exclusive(path):
            pass
        assert modes == [False]
        with exclusive(path):
            first = path.stat().st_ino
        with exclusive(path):
            assert path.stat().st_ino == first

    def test_a_link_in_its_place_is_not_followed(self, path: Path) -> None:
        (path.parent / "target").touch()
        path.symlink_to("target")
        advice = "it is a symbolic link, which may lead to somebody else's file: remove it"
        with pytest.raises(DiskProblem, match=advice), exclusive(path):
            pytest.fail("was not refused")

    def test_no_substitute_is_used_where_flock_is_missing(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr("fcntl.flock", refuse)
        with pytest.raises(DiskProblem, match="function not implemented"):
            try_lock(path)

    def test_the_library_is_loaded_by_the_first_lock_only(self) -> None:
        code = "import sys, autotune.storage.locks; sys.exit('filelock' in sys.modules)"
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        assert filelock.__name__ in sys.modules


class TestTheSoleWriterOfAFolder:
    def test_there_is_no_second_one_and_no_file_is_left(self, tmp_path: Path) -> None:
        def write() -> str:
            try:
                with sole_writer(tmp_path):
                    return "written"
            except Busy as error:
                return str(error)

        with sole_writer(tmp_path):
            assert forked(write) == f"another process writes to {tmp_path}; wait for it, or give another folder"
        assert forked(write) == "written" and not list(tmp_path.iterdir())

    def test_where_folders_have_no_locks_it_writes_if_the_folder_is_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        with pytest.raises(DiskProblem, match="cannot open .*missing"), sole_writer(tmp_path / "missing"):
            pytest.fail("was not refused")
        monkeypatch.setattr("fcntl.flock", refuse)
        with sole_writer(tmp_path):
            (tmp_path / "file").touch()


@pytest.mark.parametrize("put", [lambda path: path.symlink_to("/etc/hostname"), Path.mkdir], ids=["link", "folder"])
def test_who_has_put_something_else_in_the_place_of_a_lock_is_named(
    tmp_path: Path, put: Callable[[Path], object]
) -> None:
    path = tmp_path / "cpu-0.lock"
    put(path)
    with pytest.raises(DiskProblem) as caught:
        try_lock(path)
    said = str(locks.cannot_lock(caught.value))
    owner = owner_name(os.geteuid())
    assert said == f"{path} is in the place of a lock and no file; its owner, {owner}, should remove it"
