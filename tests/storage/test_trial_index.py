"""The index of a tuning log saves reading, and decides nothing: lost, stale, torn or foreign, the log has its way."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.storage import trial_index
from autotune.storage.formats import Failure, Trial, to_json
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT, TuningLog


def trial(number: int, time_us: float | None = 1.0, job: str = "0001-net", round: int = 0) -> Trial:
    failure = Failure("build", "error", "no") if time_us is None else None
    times = () if time_us is None else (time_us, time_us, 3 * time_us)
    return Trial(f"{number:016x}", [["inst", number], []], [], times, failure, job, round, 5.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning" / "llvm-test" / "0abc.jsonl"


@pytest.fixture
def index(path: Path) -> Path:
    return path.with_suffix(".index")


@pytest.fixture
def full_checks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The logs that were checked from the first line to the last."""
    checked: list[Path] = []
    repair = RecordLog._repair

    def noted(log: RecordLog) -> None:
        checked.append(log.path)
        repair(log)

    monkeypatch.setattr(RecordLog, "_repair", noted)
    return checked


def hashes(path: Path) -> list[int]:
    """What everybody sees; read from the log alone, with the index, and by one who follows."""
    listed = [entry.hash for entry in TuningLog(path).entries()]
    assert listed == [one.hash for one in TuningLog(path).trials()]
    assert listed == [entry.hash for entry in TuningLog(path).follow().entries]
    return [int(hash, 16) for hash in listed]


class TestEntries:
    def test_they_say_what_the_trials_say(self, path: Path) -> None:
        trials = [
            trial(1, 4.0, round=7),
            trial(2, None),
            replace(trial(3), job="host:/there/jobs/0001-net", disturbed="steal"),
        ]
        TuningLog(path).add(trials)
        for entries in (TuningLog(path).entries(), TuningLog(path).follow().entries):
            assert [entry.hash for entry in entries] == [one.hash for one in trials]
            assert [entry.median_us for entry in entries] == [one.median_us for one in trials]
            assert [entry.median_us is None for entry in entries] == [False, True, False]
            assert [entry.disturbed for entry in entries] == [False, False, True]
            assert [entry.measured_by("0001-net") for entry in entries] == [True, True, False]
            assert [(entry.round, entry.at) for entry in entries] == [(7, 5.0), (0, 5.0), (0, 5.0)]

    def test_they_lead_to_the_trials_unless_the_record_is_gone(self, path: Path) -> None:
        log = TuningLog(path)
        trials = log.add(map(trial, range(3)))
        entries = TuningLog(path).entries()
        assert log.trials_of([entries[2], entries[1]]) == [trials[2], trials[1]]
        path.write_bytes(path.read_bytes().replace(b'["inst",1]', b'["inst",8]'))
        assert log.trials_of(entries) == [trials[0], trials[2]]
        path.unlink()
        assert log.trials_of(entries) == []

    def test_only_what_is_new_is_given(self, path: Path) -> None:
        log = TuningLog(path)
        reader = TuningLog(path)
        assert reader.follow() == ([], False)
        for number in range(3):
            log.add([trial(number)])
            new = reader.follow()
            assert ([int(entry.hash, 16) for entry in new.entries], new.restarted) == ([number], False)
        path.unlink()
        assert reader.follow() == ([], True)


class TestWriting:
    def test_a_log_that_is_as_it_was_left_is_not_checked_again(self, path: Path, full_checks: list[Path]) -> None:
        TuningLog(path).add([trial(0)])
        full_checks.clear()
        for number in range(1, 4):
            TuningLog(path).add([trial(number)])  # a process of its own each time
        assert hashes(path) == [0, 1, 2, 3]
        assert full_checks == []

    def test_a_log_that_fits_its_index_is_not_read(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        TuningLog(path).add(map(trial, range(9)))
        monkeypatch.setattr(RecordLog, "_all_lines", lambda _: pytest.fail("the whole log was read"))
        assert len(TuningLog(path).entries()) == 9
        assert TuningLog(path).add([trial(0), trial(9)]) == [trial(9)]

    @pytest.mark.parametrize("change", [lambda data: data.replace(b'["inst",1]', b'["inst",8]'), lambda data: data])
    def test_a_log_that_somebody_wrote_to_is_checked_again(
        self, path: Path, full_checks: list[Path], change: Callable[[bytes], bytes]
    ) -> None:
        """Of the same length, at once, and in place: only its time of change tells."""
        TuningLog(path).add(map(trial, range(4)))
        full_checks.clear()
        path.write_bytes(change(path.read_bytes()))
        kept = {0, 1, 2, 3} - ({1} if b'["inst",8]' in path.read_bytes() else set())
        assert set(hashes(path)) == kept
        assert TuningLog(path).add([trial(4)]) == [trial(4)]
        assert full_checks == [path]
        assert set(hashes(path)) == kept | {4}
        assert path.with_name("0abc.jsonl.damaged").exists() == (1 not in kept)

    def test_a_time_that_cannot_be_set_costs_speed_alone(
        self, path: Path, index: Path, full_checks: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*_: object, **__: object) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "utime", refused)
        for number in range(3):
            TuningLog(path).add([trial(number)])
        assert hashes(path) == [0, 1, 2]
        assert full_checks == [path] * 3
        assert not index.exists()

    def test_a_hash_that_fits_no_row_leaves_the_log_without_an_index(self, path: Path) -> None:
        long = replace(trial(0), hash="long" * 5)
        log = TuningLog(path)
        assert log.add([trial(1), long]) == [trial(1), long]
        assert log.add([trial(1), long, trial(2)]) == [trial(2)]
        assert [entry.hash for entry in TuningLog(path).entries()] == [trial(1).hash, long.hash, trial(2).hash]


def lose(index: Path) -> None:
    index.unlink()


def empty(index: Path) -> None:
    index.write_bytes(b"")


def tear(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-20])


def flip(index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[40] ^= 4
    index.write_bytes(data)


def zero_tail(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-100] + bytes(100))


def drop_row(index: Path) -> None:
    row = trial_index._ROW.size
    data = index.read_bytes()
    index.write_bytes(data[: -2 * row] + data[-row:])


def newer(index: Path) -> None:
    index.write_bytes(index.read_bytes().replace(b"autotune-index-1", b"autotune-index-2"))


def foreign(index: Path) -> None:
    other = index.with_name("other.jsonl")
    TuningLog(other).add(map(trial, range(100, 104)))
    os.replace(other.with_suffix(".index"), index)


def of_a_copy(index: Path) -> None:
    """The log was replaced by a copy of itself with one trial less."""
    log = index.with_suffix(".jsonl")
    copy = log.with_name("copy")
    copy.write_bytes(b"".join(line for line in log.read_bytes().splitlines(True) if b'["inst",1]' not in line))
    os.replace(copy, log)


def stale(index: Path) -> None:
    """An older autotune, which knows no index, has added a trial."""
    RecordLog(index.with_suffix(".jsonl"), *FORMAT).append([to_json(trial(50))])


def a_folder(index: Path) -> None:
    index.unlink()
    index.mkdir()


SPOIL = [lose, empty, tear, flip, zero_tail, drop_row, newer, foreign, of_a_copy, stale, a_folder]


class TestSpoilt:
    @pytest.mark.parametrize("spoil", SPOIL)
    def test_the_log_has_its_way_and_the_next_writer_mends_the_index(
        self, path: Path, index: Path, full_checks: list[Path], spoil: Callable[[Path], None]
    ) -> None:
        TuningLog(path).add(map(trial, range(4)))
        follower = TuningLog(path)
        follower.follow()
        spoil(index)
        expected = {of_a_copy: [0, 2, 3], stale: [0, 1, 2, 3, 50]}.get(spoil, [0, 1, 2, 3])
        assert hashes(path) == expected
        added = TuningLog(path).add(map(trial, range(6)))
        assert [int(one.hash, 16) for one in added] == [number for number in range(6) if number not in expected]
        expected += [int(one.hash, 16) for one in added]
        assert hashes(path) == expected
        new = follower.follow()
        told_before = [] if new.restarted else [0, 1, 2, 3]
        assert told_before + [int(entry.hash, 16) for entry in new.entries] == expected
        full_checks.clear()
        TuningLog(path).add([trial(8)])
        assert full_checks == []
        content = trial_index.read(index)
        assert content is not None and [int(entry.hash, 16) for entry in content[0]] == [*expected, 8]

    def test_cut_at_any_byte_it_says_nothing_wrong_nor_beside_a_torn_log(self, path: Path, index: Path) -> None:
        """A power cut may take the end of the log, but not of the index."""
        TuningLog(path).add(map(trial, range(3)))
        data = index.read_bytes()
        for length in range(0, len(data), 3):
            index.write_bytes(data[:length])
            assert hashes(path) == [0, 1, 2]
        index.write_bytes(data)
        path.write_bytes(path.read_bytes()[:-9])
        assert hashes(path) == [0, 1]
        assert TuningLog(path).add([trial(2)]) == [trial(2)]
        assert hashes(path) == [0, 1, 2]
