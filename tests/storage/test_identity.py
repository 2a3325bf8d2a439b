"""A process is known by more than its number, and the dead are not taken for the living."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import DamagedFile
from autotune.storage import identity
from autotune.storage.identity import Identity


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_this_process_is_alive_and_neither_one_of_an_earlier_boot_nor_one_that_had_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me = Identity.current()
    assert me.alive() and me == Identity.of(os.getpid()) == Identity.from_json(me.to_json())
    assert not dataclasses.replace(me, start_time=me.start_time - 1).alive()
    assert not dataclasses.replace(me, boot_id="earlier").alive()
    monkeypatch.setattr("socket.gethostname", lambda: "renamed")  # while it runs
    assert me.alive()


def test_another_process_is_alive_though_it_is_stopped_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    other = Identity.of(sleeper.pid)
    assert other != Identity.current()
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert other.alive()
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it has died; nobody buried it
    assert Identity.of(sleeper.pid) == other and not other.alive()
    sleeper.wait()
    assert not other.alive()


def test_no_process_has_no_identity() -> None:
    for pid in [0, -1, 2**22 + 1, 2**80]:
        with pytest.raises(ProcessLookupError):
            Identity.of(pid)
        assert not dataclasses.replace(Identity.current(), pid=pid).alive()


def test_a_command_with_blanks_and_parentheses_does_not_confuse(tmp_path: Path) -> None:
    odd = tmp_path / "a) Z 1 (b"
    odd.symlink_to(sys.executable)
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([odd, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert ") Z" in Path(f"/proc/{process.pid}/comm").read_text()
        assert Identity.of(process.pid).alive()
        assert Identity.of(process.pid).start_time >= Identity.current().start_time


@pytest.mark.parametrize("change", [{"pid": "1"}, {"pid": True}, {"host": None}, {"start_time": 1.5}])
def test_json_of_something_else_is_damaged(change: dict[str, Any]) -> None:
    with pytest.raises(DamagedFile, match="not the identity of a process"):
        Identity.from_json({**Identity.current().to_json(), **change})
    with pytest.raises(DamagedFile):
        Identity.from_json({"host": "here"})


class TestWithoutProc:
    @pytest.fixture(autouse=True)
    def no_proc(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(identity, "_PROC", tmp_path)

    def test_what_exists_is_alive(self, sleeper: subprocess.Popen[bytes]) -> None:
        other = Identity.of(sleeper.pid)
        assert (other.boot_id, other.start_time) == ("", 0)
        assert other.alive()
        sleeper.kill()
        sleeper.wait()
        assert not other.alive()

    def test_what_may_not_be_signalled_exists_but_not_on_another_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: int, __: int) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "kill", refuse)
        assert Identity.of(1).alive()
        assert not dataclasses.replace(Identity.current(), host="elsewhere").alive()
