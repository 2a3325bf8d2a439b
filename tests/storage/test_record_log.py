"""The log keeps what it was given, whatever cuts, flips, fills or kills."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import resource
import signal
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import DamagedFile, DiskProblem, NewerFormat
from autotune.storage import locks
from autotune.storage.log_lines import START, Record
from autotune.storage.record_log import RecordLog

CALLS = ["open", "write", "fsync", "close", "replace", "unlink", "link", "truncate", "ftruncate"]
OLD: list[Record] = [{"n": 0}, {"n": 1, "text": "ünï\ncode"}, {"n": 2, "list": [1.5, None]}]
NEW: list[Record] = [{"n": 10}, {"n": 11}]


def log_at(path: Path, version: int = 1) -> RecordLog:
    return RecordLog(path, "trials", version, {"task": "conv"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(path: Path) -> RecordLog:
    log = log_at(path)
    log.append(OLD)
    return log


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was reported since the last call."""

    def told() -> list[str]:
        records = [r for r in caplog.records if r.name == "autotune.storage"]
        assert all(r.levelno == logging.WARNING for r in records)
        messages = [r.getMessage() for r in records]
        caplog.clear()
        return messages

    return told


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def is_whole(path: Path) -> bool:
    """Whether the log is sound from the first byte to the last, header included."""
    lines = lines_of(path)
    for line in lines:
        checksum, text = line[:8], line[9:-1]
        if int(checksum, 16) != zlib.crc32(text) or line[-1:] != b"\n":
            return False
    header = json.loads(lines[0][9:])
    return bool(header == {"task": "conv", "format": "trials", "version": 1})


def in_child(action: Callable[[], object]) -> int:
    """Run ``action`` in a child, and return how it ended: 0, 1 after an error, or -signal."""
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at_call(number: int) -> None:
    """Make the n-th system call of this process its last; half of a write still arrives."""
    left = number

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))


class TestAppend:
    def test_records_come_back_in_order(self, log: RecordLog) -> None:
        log.append(NEW)
        assert log.read() == OLD + NEW

    def test_the_format_of_a_line(self, path: Path) -> None:
        log_at(path).append([{"a": 1}])
        header, line = lines_of(path)
        assert line == b'%08x {"a":1}\n' % zlib.crc32(b'{"a":1}')
        assert json.loads(header[9:]) == {"format": "trials", "version": 1, "task": "conv"}

    def test_nothing_to_add_still_makes_the_log(self, path: Path) -> None:
        log_at(path).append([])
        assert is_whole(path)

    def test_what_is_not_json_leaves_the_log_as_it_was(self, log: RecordLog, path: Path) -> None:
        before = path.read_bytes()
        with pytest.raises(ValueError, match="JSON"):
            log.append([{"a": 1}, {"a": float("nan")}])
        with pytest.raises(TypeError):
            log.append([{"a": 1}, {"a": object()}])
        assert path.read_bytes() == before

    def test_a_batch_is_made_durable_once(self, log: RecordLog, monkeypatch: pytest.MonkeyPatch) -> None:
        synced = []
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            synced.append(log.read())
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)
        log.append(NEW)
        assert synced == [OLD + NEW]

    def test_a_new_log_is_durable_with_its_name_before_its_first_record(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = []
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            synced.append("folder" if os.path.isdir(target) else "file")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)
        log_at(path).append(NEW)
        assert synced == ["file", "folder", "file"]

    def test_it_waits_for_the_lock(self, log: RecordLog, path: Path) -> None:
        with locks.exclusive(path.with_name("log.lock")):
            thread = threading.Thread(target=log.append, args=(NEW,))
            thread.start()
            time.sleep(0.05)
            assert log.read() == OLD
        thread.join()
        assert log.read() == OLD + NEW

    def test_eight_appenders_lose_and_mix_nothing(self, path: Path) -> None:
        def append(who: int) -> None:
            for turn in range(5):
                log_at(path).append([{"who": who, "n": 2 * turn + k} for k in range(2)])

        children = []
        for who in range(8):
            child = os.fork()
            if not child:
                try:
                    append(who)
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        records = log_at(path).read()
        assert len(records) == 80
        assert is_whole(path)
        for who in range(8):
            assert [r["n"] for r in records if r["who"] == who] == list(range(10))
        pairs = zip(records[::2], records[1::2], strict=True)
        assert all(a["who"] == b["who"] and b["n"] == a["n"] + 1 for a, b in pairs)


class TestRead:
    def test_no_log_is_empty(self, path: Path) -> None:
        assert log_at(path).read() == []
        assert not path.exists()

    def test_readers_need_no_lock_and_change_nothing(self, log: RecordLog, path: Path) -> None:
        with path.open("ab") as file:
            file.write(b"torn")
        before = path.read_bytes()
        with locks.exclusive(path.with_name("log.lock")):
            assert log.read() == OLD
        assert path.read_bytes() == before

    def test_a_log_that_cannot_be_read_is_a_disk_problem(self, path: Path) -> None:
        path.symlink_to(path)
        with pytest.raises(DiskProblem, match="cannot read"):
            log_at(path).read()

    def test_a_folder_in_its_place_is_no_log_and_goes_out_of_the_way(self, path: Path) -> None:
        path.mkdir()
        (path / "inside").touch()
        assert log_at(path).read() == []
        log_at(path).append([{"a": 1}])
        assert log_at(path).read() == [{"a": 1}]
        assert [(aside / "inside").exists() for aside in path.parent.glob(f"{path.name}.damaged-*")] == [True]

    def test_whole_lines_that_hold_no_record_are_passed_over(self, log: RecordLog, path: Path) -> None:
        with path.open("ab") as file:
            for text in [b"[1]", b"", b"{"]:
                file.write(b"%08x %s\n" % (zlib.crc32(text), text))
        log.append(NEW)
        assert log.read() == OLD + NEW


class TestHeader:
    @pytest.mark.parametrize(
        "use", [lambda log: log.read(), lambda log: log.append(NEW), lambda log: log.read_from(START)]
    )
    def test_a_later_version_is_refused_naming_both(self, path: Path, use: Callable[[RecordLog], object]) -> None:
        log_at(path, version=3).append(OLD)
        before = path.read_bytes()
        with pytest.raises(NewerFormat, match=r"version 3 .* up to version 2"):
            use(log_at(path, version=2))
        assert path.read_bytes() == before

    def test_an_earlier_version_is_read_and_appended_to(self, path: Path) -> None:
        log_at(path, version=1).append(OLD)
        log_at(path, version=2).append(NEW)
        assert log_at(path, version=2).read() == OLD + NEW

    def test_a_log_of_something_else_is_refused_and_left_alone(self, log: RecordLog, path: Path) -> None:
        before = path.read_bytes()
        other = RecordLog(path, "events", 1)
        with pytest.raises(DamagedFile, match="'trials' instead of 'events'"):
            other.append(NEW)
        with pytest.raises(DamagedFile):
            other.read()
        assert path.read_bytes() == before

    @pytest.mark.parametrize("header", [b"", b"\n", b"00000000 {}\n", b"\0\0\0\n"])
    def test_records_survive_the_loss_of_the_header(
        self, log: RecordLog, path: Path, header: bytes, warnings: Callable[[], list[str]]
    ) -> None:
        path.write_bytes(header + b"".join(lines_of(path)[1:]))
        assert log.read() == OLD
        log.append(NEW)
        assert log.read() == OLD + NEW
        assert is_whole(path)
        assert any("wrote the lost header anew" in message for message in warnings())

    def test_an_empty_file_becomes_a_log(self, path: Path, warnings: Callable[[], list[str]]) -> None:
        path.touch()
        assert log_at(path).read() == []
        log_at(path).append(NEW)
        assert log_at(path).read() == NEW
        assert is_whole(path)
        assert warnings() == []


class TestDamage:
    def test_cut_at_any_byte_all_whole_lines_survive_and_appending_goes_on(
        self, log: RecordLog, path: Path, warnings: Callable[[], list[str]]
    ) -> None:
        content = path.read_bytes()
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

    def test_a_bad_checksum_at_the_very_end_is_a_torn_tail(
        self, log: RecordLog, path: Path, warnings: Callable[[], list[str]]
    ) -> None:
        with path.open("ab") as file:
            file.write(b'00000000 {"n":3}\n')
        assert log.read() == OLD
        log.append(NEW)
        assert log.read() == OLD + NEW
        assert is_whole(path)
        assert len(warnings()) == 1

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

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
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

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
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
        before, write = path.read_bytes(), os.write
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

    @pytest.mark.parametrize("room", [0, 1, 25])
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
        log, call, seen = log_at(path), 1, set()
        log.append(OLD)
        header, *records = lines_of(path)
        needs_mending = b"".join([b"#" + header, b"junk\n", *records, b"torn"])
        while True:
            path.write_bytes(needs_mending)

            def append(number: int = call) -> None:
                die_at_call(number)
                log.append(NEW)

            ended = in_child(append)
            found = log.read()
            assert found in (OLD, OLD + NEW[:1], OLD + NEW)
            seen.add(len(found))
            log.append([{"n": 20}])
            assert log.read() == [*found, {"n": 20}]
            assert is_whole(path)
            if not ended:
                break
            assert ended == -signal.SIGKILL
            call += 1
        assert call > 15
        assert seen == {3, 4, 5}

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


class TestReadFrom:
    def test_each_record_is_given_once(self, log: RecordLog) -> None:
        records, place, restarted = log.read_from(START)
        assert (records, restarted) == (OLD, False)
        assert log.read_from(place) == ([], place, False)
        log.append(NEW)
        records, later, restarted = log.read_from(place)
        assert (records, restarted) == (NEW, False)
        assert log.read_from(later) == ([], later, False)

    def test_a_log_that_is_not_there_yet_begins_later(self, path: Path) -> None:
        records, place, restarted = log_at(path).read_from(START)
        assert (records, place, restarted) == ([], START, False)
        log_at(path).append(NEW)
        assert log_at(path).read_from(place)[::2] == (NEW, False)

    def test_a_log_with_a_header_only(self, path: Path) -> None:
        log_at(path).append([])
        tail = log_at(path).read_from(START)
        assert tail.records == []
        log_at(path).append(NEW)
        assert log_at(path).read_from(tail.position)[::2] == (NEW, False)

    def test_a_half_written_line_is_given_when_it_is_whole(self, path: Path) -> None:
        log_at(path).append(OLD)
        content = path.read_bytes()
        given: list[Record] = []
        place = START
        for length in range(len(content) + 1):
            path.write_bytes(content[:length])
            records, place, restarted = log_at(path).read_from(place)
            assert not restarted
            given += records
        assert given == OLD

    def test_cutting_off_a_torn_tail_is_no_restart(self, log: RecordLog, path: Path) -> None:
        for torn in [b"torn", b"00000000 {}\n"]:
            with path.open("ab") as file:
                file.write(torn)
            place = log.read_from(START).position
            log.append(NEW)
            assert log.read_from(place)[::2] == (NEW, False)

    @pytest.mark.parametrize("equal", ["shorter", "as long", "longer"])
    def test_a_rewritten_log_is_given_from_the_start(self, log: RecordLog, path: Path, equal: str) -> None:
        log.append([{"k": n} for n in range(6)])
        place = log.read_from(START).position
        lines = lines_of(path)
        path.write_bytes(b"".join([*lines[:5], b"#" + lines[5][1:], *lines[6:]]))
        log.append([{"k": 7 + n} for n in range(["shorter", "as long", "longer"].index(equal))])
        records, later, restarted = log.read_from(place)
        assert restarted
        assert records == log.read()
        assert log.read_from(later) == ([], later, False)

    def test_a_batch_taken_back_for_want_of_room_is_a_restart(self, log: RecordLog, path: Path) -> None:
        before = path.stat().st_size
        log.append([{"n": 8}])
        place = log.read_from(START).position  # read before the batch was found not to fit
        os.truncate(path, before)
        assert log.read_from(place)[::2] == (OLD, True)
        log.append([{"n": 9}])
        assert log.read_from(place)[::2] == ([*OLD, {"n": 9}], True)

    def test_a_deleted_log_is_a_restart(self, log: RecordLog, path: Path) -> None:
        place = log.read_from(START).position
        path.unlink()
        assert log.read_from(place) == ([], START, True)

    def test_following_a_log_while_it_grows(self, path: Path) -> None:
        def write() -> None:
            for n in range(30):
                log_at(path).append([{"n": 2 * n}, {"n": 2 * n + 1}])

        writer = threading.Thread(target=write)
        writer.start()
        given: list[Record] = []
        place = START
        while writer.is_alive() or len(given) < 60:
            records, place, restarted = log_at(path).read_from(place)
            assert not restarted
            given += records
        writer.join()
        assert given == [{"n": n} for n in range(60)]


class TestTransaction:
    def test_it_sees_all_records_and_its_own(self, log: RecordLog) -> None:
        with log.transaction() as transaction:
            assert transaction.records == OLD
            transaction.append(NEW)
            assert transaction.records == OLD + NEW
        assert log.read() == OLD + NEW

    def test_what_it_appends_is_durable_at_once(self, log: RecordLog) -> None:
        with log.transaction() as transaction:
            transaction.append(NEW)
            assert log.read() == OLD + NEW

    def test_what_it_appended_stays_when_the_block_fails(self, log: RecordLog) -> None:
        with pytest.raises(ZeroDivisionError), log.transaction() as transaction:
            transaction.append(NEW)
            _ = 1 / 0
        assert log.read() == OLD + NEW
        log.append(NEW)

    def test_it_finds_a_mended_log(self, log: RecordLog, path: Path) -> None:
        with path.open("ab") as file:
            file.write(b"torn")
        with log.transaction():
            assert is_whole(path)

    def test_of_many_who_check_first_only_one_appends(self, path: Path) -> None:
        def append_if_new() -> None:
            for n in range(10):
                with log_at(path).transaction() as transaction:
                    if {"n": n} not in transaction.records:
                        transaction.append([{"n": n}])

        threads = [threading.Thread(target=append_if_new) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log_at(path).read() == [{"n": n} for n in range(10)]


@pytest.fixture(autouse=True)
def no_file_left_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before
