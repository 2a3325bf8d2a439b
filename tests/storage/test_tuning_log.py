"""A tuning log holds every trial it was given, each once, whoever else writes and whatever is damaged."""

from __future__ import annotations

import functools
import json
import operator
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import DamagedFile, DiskProblem, NewerFormat
from autotune.storage import trial_index
from autotune.storage.formats import Failure, Trial, to_json
from autotune.storage.log_lines import Position
from autotune.storage.paths import TaskLogPaths
from autotune.storage.record_log import RecordLog
from autotune.storage.trial_index import IndexEntry, entry_of
from autotune.storage.tuning_log import FORMAT, TuningLog


def trial(hash: str, *times: float, failure: Failure | None = None) -> Trial:
    return Trial(hash, [["inst", 1], []], [["TENSOR", "float32", [1, 8]]], times or (1.0,), failure, "0001-net", 0, 5.0)


def hashes(log: TuningLog) -> list[str]:
    return [trial.hash for trial in log.trials()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning" / "llvm-test" / "0abc.jsonl"


@pytest.fixture
def log(path: Path) -> TuningLog:
    return TuningLog(path)


class TestAdding:
    def test_what_is_added_is_there_for_everyone(self, log: TuningLog, path: Path) -> None:
        assert log.trials() == []
        assert not path.parent.exists()
        trials = [trial("a", 3.0, 1.0, 2.0), trial("b", failure=Failure("build", "timeout", "killed after 20 s"))]
        assert log.add(one for one in trials) == trials
        assert log.trials() == TuningLog(path).trials() == trials

    def test_a_candidate_is_logged_once_and_the_first_counts(self, log: TuningLog, path: Path) -> None:
        assert log.add([trial("a", 1.0), trial("a", 2.0)]) == [trial("a", 1.0)]
        assert log.add([trial("a", 2.0), trial("b")]) == [trial("b")]
        TuningLog(path).add([trial("c", 1.0)])
        size = path.stat().st_size
        assert log.add([trial("c", 2.0)]) == log.add([]) == []
        assert path.stat().st_size == size
        RecordLog(path, *FORMAT).append([to_json(trial("a", 3.0))])
        assert log.trials() == TuningLog(path).trials() == [trial("a", 1.0), trial("b"), trial("c", 1.0)]


class TestManyAdders:
    ADDERS = 4
    TRIALS = 25

    def add_all(self, path: Path, seed: int) -> None:
        """Add all trials, each alone, in an order of one's own."""
        log = TuningLog(path)
        names = [str(number) for number in range(self.TRIALS)]
        random.Random(seed).shuffle(names)
        added = [name for name in names if log.add([trial(name, float(seed + 1))])]
        (path.parent / f"added-{seed}").write_text(json.dumps(added))

    def test_no_candidate_is_in_the_log_twice(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        pids = []
        for seed in range(self.ADDERS):
            pids.append(os.fork())
            if not pids[-1]:
                try:
                    self.add_all(path, seed)
                    os._exit(0)
                finally:
                    os._exit(1)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * self.ADDERS
        logged = [record["hash"] for record in RecordLog(path, *FORMAT).read()]
        assert sorted(logged, key=int) == [str(number) for number in range(self.TRIALS)]
        added = [json.loads((path.parent / f"added-{seed}").read_text()) for seed in range(self.ADDERS)]
        assert sorted(functools.reduce(operator.iadd, added, [])) == sorted(logged)


class TestFollowing:
    def test_what_was_read_is_not_read_again_unless_the_log_was_mended(self, log: TuningLog, path: Path) -> None:
        other = TuningLog(path)
        other.add([trial(name) for name in "abc"])
        log.follow()
        before = log.trials()
        other.add([trial("d")])
        after = log.trials()
        assert [one.hash for one in after] == [entry.hash for entry in log.entries()] == ["a", "b", "c", "d"]
        assert all(one is earlier for one, earlier in zip(after, before, strict=False))
        assert log.follow() == ([], False)
        path.write_bytes(path.read_bytes().replace(b'"hash":"b"', b'"hash":"x"'))
        other.add([trial("e")])
        assert hashes(log) == ["a", "c", "d", "e"]

    def test_a_read_that_fails_half_way_is_made_again(
        self, log: TuningLog, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        TuningLog(path).add([trial(name) for name in "ab"])
        TaskLogPaths(path).index.unlink()

        def failing(line: bytes, position: Position) -> IndexEntry | None:
            entry = entry_of(line, position)
            if entry is not None and entry.hash == "b":
                raise DiskProblem("the second trial cannot be read")
            return entry

        with monkeypatch.context() as patched, pytest.raises(DiskProblem):
            patched.setattr(trial_index, "entry_of", failing)
            log.entries()
        assert [entry.hash for entry in log.entries()] == hashes(log) == ["a", "b"]

    def test_a_log_that_was_deleted_is_empty(self, log: TuningLog, path: Path) -> None:
        log.add([trial("a")])
        log.trials().clear()
        assert hashes(log) == ["a"], "a list that was given out is no part of it"
        path.unlink()
        assert log.trials() == []
        assert len(log.add([trial("a")])) == 1


class TestDamage:
    def test_a_damaged_line_costs_its_trial_and_a_torn_tail_the_last(self, log: TuningLog, path: Path) -> None:
        log.add([trial(name) for name in "abc"])
        path.write_bytes(path.read_bytes()[:-9].replace(b'"hash":"a"', b'"hash":"x"'))
        fresh = TuningLog(path)
        assert hashes(fresh) == ["b"]
        assert [added.hash for added in fresh.add([trial(name) for name in "abc"])] == ["a", "c"]
        assert hashes(TuningLog(path)) == ["b", "a", "c"]

    @pytest.mark.parametrize(
        "change",
        [{"hash": 5}, {"times_us": ["fast"]}, {"times_us": [0.0]}, {"at": 1e300}, {"round": 10**400}],
    )
    def test_a_sound_line_that_is_no_trial_is_passed_over(
        self, log: TuningLog, path: Path, change: dict[str, Any]
    ) -> None:
        log.add([trial("a")])
        RecordLog(path, *FORMAT).append([to_json(trial("b")) | change, {}])
        log.add([trial("c")])
        assert hashes(log) == hashes(TuningLog(path)) == ["a", "c"]
        assert [entry.hash for entry in TuningLog(path).entries()] == ["a", "c"]

    @pytest.mark.parametrize("deep", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
    def test_a_line_that_nests_without_end_is_passed_over(self, log: TuningLog, path: Path, deep: bytes) -> None:
        log.add([trial("a")])
        text = json.dumps(to_json(trial("b")) | {"trace": 0}).encode().replace(b'"trace": 0', b'"trace": ' + deep)
        with path.open("ab") as file:
            file.write(b"%08x %s\n" % (zlib.crc32(text), text))
        log.add([trial("c")])
        assert hashes(log) == hashes(TuningLog(path)) == ["a", "c"]
        assert [entry.hash for entry in TuningLog(path).entries()] == ["a", "c"]

    def test_a_trial_with_fields_of_a_later_version_is_read(self, log: TuningLog, path: Path) -> None:
        log.add([trial("a")])
        RecordLog(path, *FORMAT).append([to_json(trial("b")) | {"joules": 5}])
        assert log.trials() == [trial("a"), trial("b")]

    @pytest.mark.parametrize(("format", "version", "error"), [(FORMAT[0], 99, NewerFormat), ("diary", 1, DamagedFile)])
    def test_the_log_of_something_else_is_left_alone(
        self, log: TuningLog, path: Path, format: str, version: int, error: type[Exception]
    ) -> None:
        path.parent.mkdir(parents=True)
        header = json.dumps({"format": format, "version": version}).encode()
        path.write_bytes(b"%08x %s\n" % (zlib.crc32(header), header))
        before = path.read_bytes()
        with pytest.raises(error):
            log.add([trial("a")])
        assert path.read_bytes() == before
