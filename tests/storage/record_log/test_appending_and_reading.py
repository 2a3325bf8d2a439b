"""The log gives back what it was given, in order, to any number of readers and writers."""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import DamagedFile, DiskProblem, NewerFormat
from autotune.storage import locks
from autotune.storage.log_lines import START
from autotune.storage.record_log import RecordLog

from .logs import NEW, OLD, is_whole, lines_of, log_at


class TestAppend:
    def test_records_come_back_in_order(self, path: Path) -> None:
        log_at(path).append([])
        assert is_whole(path)
        log_at(path).append(OLD)
        log_at(path).append(NEW)
        assert log_at(path).read() == OLD + NEW

    def test_the_format_of_a_line(self, path: Path) -> None:
        log_at(path).append([{"a": 1}])
        header, line = lines_of(path)
        assert line == b'%08x {"a":1}\n' % zlib.crc32(b'{"a":1}')
        assert json.loads(header[9:]) == {"format": "trials", "version": 1, "task": "conv"}

    def test_what_is_not_json_leaves_the_log_as_it_was(self, log: RecordLog, path: Path) -> None:
        before = path.read_bytes()
        with pytest.raises(ValueError, match="JSON"):
            log.append([{"a": 1}, {"a": float("nan")}])
        with pytest.raises(TypeError):
            log.append([{"a": 1}, {"a": object()}])
        assert path.read_bytes() == before

    def test_a_batch_is_made_durable_once_and_a_new_log_with_its_name_before_its_first_record(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = []
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            synced.append("folder" if os.path.isdir(target) else log_at(path).read() if path.exists() else "file")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)
        log_at(path).append(OLD)
        log_at(path).append(NEW)
        assert synced == ["file", "folder", OLD, OLD + NEW]

    def test_it_waits_for_the_lock_which_readers_do_not_need(self, log: RecordLog, path: Path) -> None:
        with path.open("ab") as file:
            file.write(b"torn")
        before = path.read_bytes()
        with locks.exclusive(path.with_name("log.lock")):
            thread = threading.Thread(target=log.append, args=(NEW,))
            thread.start()
            thread.join(0.05)
            assert log.read() == OLD and path.read_bytes() == before
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
    def test_no_log_is_empty_and_a_folder_in_its_place_goes_out_of_the_way(self, path: Path) -> None:
        assert log_at(path).read() == []
        assert not path.exists()
        path.symlink_to(path)
        with pytest.raises(DiskProblem, match="cannot read"):
            log_at(path).read()
        path.unlink()
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

    def test_an_empty_file_becomes_a_log_and_an_earlier_version_is_read_and_appended_to(
        self, path: Path, warnings: Callable[[], list[str]]
    ) -> None:
        path.touch()
        assert log_at(path).read() == []
        log_at(path, version=1).append(OLD)
        log_at(path, version=2).append(NEW)
        assert log_at(path, version=2).read() == OLD + NEW
        assert is_whole(path) and warnings() == []

    def test_a_log_of_something_else_is_refused_and_left_alone(self, log: RecordLog, path: Path) -> None:
        before = path.read_bytes()
        other = RecordLog(path, "events", 1)
        with pytest.raises(DamagedFile, match="'trials' instead of 'events'"):
            other.append(NEW)
        with pytest.raises(DamagedFile):
            other.read()
        assert path.read_bytes() == before

    @pytest.mark.parametrize("header", [b"", b"00000000 {}\n", b"\0\0\0\n"])
    def test_records_survive_the_loss_of_the_header(
        self, log: RecordLog, path: Path, header: bytes, warnings: Callable[[], list[str]]
    ) -> None:
        path.write_bytes(header + b"".join(lines_of(path)[1:]))
        assert log.read() == OLD
        log.append(NEW)
        assert log.read() == OLD + NEW
        assert is_whole(path)
        assert any("wrote the lost header anew" in message for message in warnings())


class TestTransaction:
    def test_it_finds_a_mended_log_and_what_it_appends_is_durable_at_once(self, log: RecordLog, path: Path) -> None:
        with path.open("ab") as file:
            file.write(b"torn")
        with pytest.raises(ZeroDivisionError), log.transaction() as transaction:
            assert is_whole(path) and transaction.records == OLD
            transaction.append(NEW)
            assert transaction.records == log.read() == OLD + NEW
            _ = 1 / 0
        assert log.read() == OLD + NEW
        log.append(NEW)
