"""A log can be read on from where the reader stopped, while others write to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.storage.log_lines import START, Record
from autotune.storage.record_log import RecordLog

from .logs import NEW, OLD, lines_of, log_at


class TestReadFrom:
    def test_each_record_is_given_once(self, log: RecordLog) -> None:
        records, place, restarted = log.read_from(START)
        assert (records, restarted) == (OLD, False)
        assert log.read_from(place) == ([], place, False)
        log.append(NEW)
        records, later, restarted = log.read_from(place)
        assert (records, restarted) == (NEW, False)
        assert log.read_from(later) == ([], later, False)

    def test_a_log_that_is_not_there_yet_or_has_a_header_only_begins_later(self, path: Path) -> None:
        assert log_at(path).read_from(START) == ([], START, False)
        log_at(path).append([])
        tail = log_at(path).read_from(START)
        assert (tail.records, tail.restarted) == ([], False)
        log_at(path).append(NEW)
        assert log_at(path).read_from(START)[::2] == log_at(path).read_from(tail.position)[::2] == (NEW, False)

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

    def test_a_batch_taken_back_for_want_of_room_is_a_restart_and_so_is_a_deleted_log(
        self, log: RecordLog, path: Path
    ) -> None:
        before = path.stat().st_size
        log.append([{"n": 8}])
        place = log.read_from(START).position  # read before the batch was found not to fit
        os.truncate(path, before)
        assert log.read_from(place)[::2] == (OLD, True)
        log.append([{"n": 9}])
        assert log.read_from(place)[::2] == ([*OLD, {"n": 9}], True)
        path.unlink()
        assert log.read_from(place) == ([], START, True)
