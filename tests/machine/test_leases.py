"""Leases exclude everyone on the machine, are all or none, and starve no one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.errors import Busy, StorageError
from autotune.machine.leases import cpu_name, lease, lease_one

CPUS = [cpu_name(cpu) for cpu in range(3)]


class Others:
    """Processes of the test, each forked to run one function."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def start(self, action: Callable[[], object]) -> int:
        pid = os.fork()
        if not pid:
            signal.alarm(60)  # should the test fail and forget it
            try:
                action()
                os._exit(0)
            except BaseException as error:
                os.write(2, repr(error).encode())
            finally:
                os._exit(1)
        self.pids.append(pid)
        return pid

    def holding(self, action: Callable[[], object]) -> int:
        """Start one that takes a lease and keeps it; returns once it has it."""
        hear, say = os.pipe()

        def keep() -> None:
            held = action()
            os.write(say, b"!")
            signal.pause()
            del held

        pid = self.start(keep)
        os.close(say)
        assert os.read(hear, 1) == b"!"
        os.close(hear)
        return pid

    def end(self, pid: int, number: int = 0) -> int:
        os.kill(pid, number) if number else None
        self.pids.remove(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def kill(self) -> None:
        for pid in list(self.pids):
            self.end(pid, signal.SIGKILL)


@pytest.fixture
def others() -> Iterator[Others]:
    others = Others()
    yield others
    others.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


class TestLease:
    def test_a_lease_excludes_other_processes_until_it_is_released(self, folder: Path, others: Others) -> None:
        with lease(folder, CPUS[:1], 0) as held:
            assert [path.name for path in held.paths] == ["cpu-0.lock"]
            assert others.end(others.start(lambda: lease(folder, CPUS[:1], 0))) == 1
        assert others.end(others.start(lambda: lease(folder, CPUS[:1], 0))) == 0

    def test_a_lease_is_on_all_resources_or_none(self, folder: Path, others: Others) -> None:
        others.holding(lambda: lease(folder, CPUS[1:2], 0))
        with pytest.raises(Busy):
            lease(folder, CPUS, 0)
        with lease(folder, [CPUS[0], CPUS[2]], 0) as held:
            assert len(held.paths) == 2

    def test_who_gives_up_says_what_was_busy(self, folder: Path, others: Others) -> None:
        holder = others.holding(lambda: lease(folder, CPUS[:1], 0))
        for wait_s in (0.0, 0.2):
            begun = time.monotonic()
            with pytest.raises(Busy, match=r"^cpu-0 in use by others$"):
                lease(folder, CPUS[:1], wait_s)
            assert time.monotonic() - begun >= wait_s
        others.end(holder, signal.SIGKILL)
        others.holding(lambda: _hold_turnstile(folder))
        with pytest.raises(Busy, match=r"^cpu-0 in use by others$"):
            lease(folder, CPUS[:1], 0.1)

    @pytest.mark.parametrize("age_s", [120, -3600])
    def test_who_stands_at_the_turnstile_for_ever_is_passed_by(self, folder: Path, others: Others, age_s: int) -> None:
        others.holding(lambda: _hold_turnstile(folder))
        then = time.time() - age_s
        os.utime(folder / "turnstile.lock", (then, then))
        with lease(folder, CPUS, 0.5) as held:
            assert len(held.paths) == len(CPUS)
        with lease_one(folder, CPUS) as held:
            assert len(held.paths) == 1

    def test_a_lease_that_is_waited_for_is_had_when_it_is_free(self, folder: Path, others: Others) -> None:
        holder = others.holding(lambda: lease(folder, CPUS[:1], 0))
        waiting = others.start(lambda: lease(folder, CPUS, 30))
        time.sleep(0.1)
        assert os.waitpid(waiting, os.WNOHANG) == (0, 0)
        others.end(holder, signal.SIGTERM)
        assert others.end(waiting) == 0

    def test_a_child_of_its_holder_does_not_keep_it(self, folder: Path, others: Others) -> None:
        def with_child() -> object:
            held = lease(folder, CPUS, 0)
            if not os.fork():
                signal.alarm(20)
                signal.pause()
            return held

        others.end(others.holding(with_child), signal.SIGKILL)
        with lease(folder, CPUS, 5) as held:  # at once, but for the moment in which the child is still being born
            assert len(held.paths) == len(CPUS)

    def test_a_folder_that_is_not_safe_is_refused(self, folder: Path) -> None:
        folder.symlink_to("/tmp")
        with pytest.raises(StorageError, match="symbolic link"):
            lease(folder, CPUS, 0)


class TestLeaseOne:
    def test_it_takes_the_first_that_is_free_and_waits_until_one_is(self, folder: Path, others: Others) -> None:
        others.holding(lambda: lease(folder, CPUS[:1], 0))
        with lease_one(folder, CPUS) as held:
            assert [path.name for path in held.paths] == ["cpu-1.lock"]
        holder = others.holding(lambda: lease(folder, CPUS[1:], 0))
        waiting = others.start(lambda: lease_one(folder, CPUS))
        time.sleep(0.1)
        assert os.waitpid(waiting, os.WNOHANG) == (0, 0)
        others.end(holder, signal.SIGKILL)
        assert others.end(waiting) == 0


class TestFairness:
    def test_one_who_needs_all_gets_its_turn_among_many_who_take_one(self, folder: Path, others: Others) -> None:
        def take_one_again_and_again() -> None:
            while True:
                with lease_one(folder, CPUS):
                    time.sleep(0.05)

        for _ in range(6):  # twice as many as there are resources: none is ever free for long
            others.start(take_one_again_and_again)
        time.sleep(0.2)
        with lease(folder, CPUS, 20) as held:
            assert len(held.paths) == len(CPUS)


class TestOverlap:
    def test_no_two_processes_ever_hold_the_same_resource(self, folder: Path, tmp_path: Path, others: Others) -> None:
        """Whoever holds a resource makes a file of its name, and meets no other's."""

        def use(names: list[str]) -> None:
            with lease(folder, names, 30) if len(names) > 1 else lease_one(folder, CPUS) as held:
                marks = [tmp_path / f"{path.stem}.mark" for path in held.paths]
                for mark in marks:
                    mark.touch(exist_ok=False)
                time.sleep(0.005)
                for mark in marks:
                    mark.unlink()

        def use_often(names: list[str]) -> None:
            for _ in range(8):
                use(names)

        wishes = [CPUS[:1], CPUS[:1], CPUS[:2], CPUS[1:], CPUS]
        pids = [others.start(lambda names=names: use_often(names)) for names in wishes]
        assert [others.end(pid) for pid in pids] == [0] * len(wishes)


def _hold_turnstile(folder: Path) -> object:
    """The lock of someone who waits for several resources."""
    from autotune.storage import locks

    locks.ensure_lock_folder(folder)
    return locks.try_lock(folder / "turnstile.lock")
