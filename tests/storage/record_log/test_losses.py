"""The log keeps what it was given, whatever cuts, flips, fills or kills."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import DiskProblem
from autotune.storage.record_log import RecordLog

from ..deaths import in_child, killed_at_call
from .logs import NEW, OLD, is_whole, lines_of, log_at


class TestDamage:
    def test_cut_at_any_byte_all_whole_lines_survive_and_appending_goes_on(
        self, log: RecordLog, path: Path, warnings: Callable[[], list[str]]
    ) -> None:
        content = path.read_bytes()
        path.write_bytes(content + b'00000000 {"n":3}\n')  # a bad checksum at the very end is a torn tail
        assert log.read() == OLD
        for length in range(len(content) + 1):
            path.write_bytes(content[:length])
            survivors = OLD[: max(0, content[:length].count(b"\n") - 1)]
            assert log.read() == survivors
            log.append(NEW)
            assert log.read() == survivors + NEW
            assert is_whole(path)
            torn = length - (content.rfind(b"\n", 0, length) + 1)
            told = [f"{path}: cut off a torn tail of {torn} bytes"] if torn else []
            assert warnings() == told
        assert not path.with_name("log.damaged").exists()

    def test_damaged_lines_in_the_middle_are_set_aside(
        self, log: RecordLog, path: Path, warnings: Callable[[], list[str]]
    ) -> None:
        aside = path.with_name("log.damaged")
        for turn in range(2):
            lines = lines_of(path)
            bad = b"#" + lines[1][1:]
            path.write_bytes(b"".join([lines[0], bad, *lines[2:]]))
            assert log.read() == OLD[turn + 1 :]
            log.append([])
            assert log.read() == OLD[turn + 1 :]
            assert is_whole(path)
            assert lines_of(aside)[turn] == bad
            assert warnings() == [f"{path}: moved 1 damaged lines to {aside}"]
        assert len(lines_of(aside)) == 2

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_any_flipped_byte_costs_at_most_the_lines_it_touches(self, data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "log")
            log = log_at(path)
            log.append(OLD)
            content = bytearray(path.read_bytes())
            at = data.draw(st.integers(0, len(content) - 1))
            was_newline = content[at] == ord("\n")
            content[at] ^= data.draw(st.integers(1, 255))
            touched = content[:at].count(b"\n") - 1  # the record; -1 is the header
            lost = {touched, touched + 1} if was_newline else {touched}
            path.write_bytes(content)
            survivors = [record for n, record in enumerate(OLD) if n not in lost]
            assert log.read() == survivors
            log.append(NEW)
            assert log.read() == survivors + NEW
            assert is_whole(path)

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(junk=st.binary(max_size=200))
    def test_any_junk_is_read_and_appended_to(self, junk: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "log")
            path.write_bytes(junk)
            assert log_at(path).read() == []
            log_at(path).append(NEW)
            assert log_at(path).read() == NEW
            assert is_whole(path)


class TestFullDisk:
    @pytest.mark.parametrize("name", ["write", "fsync"])
    def test_a_batch_that_does_not_fit_leaves_the_log_as_it_was(
        self, log: RecordLog, path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        before = path.read_bytes()
        write = os.write
        written = 0

        def refuse(descriptor: int, data: bytes = b"") -> int:
            nonlocal written
            if data and not written:
                written = write(descriptor, data[: len(data) // 2 + 3])
                return written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, name, refuse)
        with pytest.raises(DiskProblem, match=f"cannot append to {path}: no space left"):
            log.append(NEW)
        assert path.read_bytes() == before
        assert log.read() == OLD
        monkeypatch.undo()
        log.append(NEW)
        assert log.read() == OLD + NEW

    def test_an_interrupted_batch_leaves_the_log_as_it_was(
        self, log: RecordLog, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(_: int) -> None:
            raise KeyboardInterrupt

        before = path.read_bytes()
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append(NEW)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("room", [0, 25])
    def test_a_real_limit_leaves_the_log_as_it_was(self, log: RecordLog, path: Path, room: int) -> None:
        before = path.read_bytes()

        def append() -> None:
            limit = len(before) + room
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            with pytest.raises(DiskProblem, match="file too large"):
                log.append(NEW)

        assert in_child(append) == 0
        assert path.read_bytes() == before

    def test_a_new_log_that_does_not_fit_is_not_there(self, path: Path) -> None:
        def append() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
            with pytest.raises(DiskProblem):
                log_at(path).append(NEW)

        assert in_child(append) == 0
        assert os.listdir(path.parent) == ["log.lock"]

    def test_damage_that_cannot_be_set_aside_stays_where_it_is(
        self, log: RecordLog, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = lines_of(path)
        path.write_bytes(b"".join([lines[0], b"junk\n", *lines[1:]]))
        before = path.read_bytes()

        def refuse(*_: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "write", refuse)
        with pytest.raises(DiskProblem):
            log.append(NEW)
        assert path.read_bytes() == before


class TestDeath:
    def test_killed_at_any_system_call_the_log_keeps_the_old_and_a_part_of_the_new(self, path: Path) -> None:
        """Each time from a log that needs all kinds of mending."""
        log = log_at(path)
        call = 1
        seen = set()
        log.append(OLD)
        header, *records = lines_of(path)
        needs_mending = b"".join([b"#" + header, b"junk\n", *records, b"torn"])
        while True:
            path.write_bytes(needs_mending)
            killed = killed_at_call(call, lambda: log.append(NEW))
            records_read = log.read()
            assert records_read in (OLD, OLD + NEW[:1], OLD + NEW)
            seen.add(len(records_read))
            log.append([{"n": 20}])
            assert log.read() == [*records_read, {"n": 20}]
            assert is_whole(path)
            if not killed:
                break
            call += 1
        assert call > 15
        assert seen == {3, 4, 5}

    @pytest.mark.slow
    def test_killed_at_any_time_what_was_acknowledged_is_there(self, path: Path) -> None:
        chance = random.Random(7)
        log = log_at(path)
        acknowledged = 0
        for _ in range(15):
            start = len(log.read())
            assert start >= acknowledged
            hear, say = os.pipe()
            child = os.fork()
            if not child:
                self.append_until_killed(log_at(path), start, say)
            os.close(say)
            os.read(hear, 4)
            time.sleep(chance.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            with open(hear, "rb") as said:
                told = said.read()
            if told:
                acknowledged = int.from_bytes(told[-4:], "big")
            assert [record["n"] for record in log.read()] == list(range(len(log.read())))
        log.append([])
        assert len(log.read()) >= acknowledged > 15
        assert is_whole(path)

    @staticmethod
    def append_until_killed(log: RecordLog, start: int, say: int) -> None:
        try:
            while True:
                batch = [{"n": start + k, "pad": "x" * 5000} for k in range(3)]
                log.append(batch)
                start += 3
                os.write(say, start.to_bytes(4, "big"))
        finally:
            os._exit(1)
