"""The quarantine: what goes in comes back, damage shuts out nobody, and a newer one is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.daemon.loop import Daemon
from autotune.errors import NewerFormat
from autotune.storage.formats import Failure, from_json, to_json
from autotune.storage.paths import Workspace
from autotune.storage.quarantine import FORMAT, Quarantine, Quarantined
from autotune.storage.record_log import RecordLog

CRASH = Failure("measure", "crash", "killed by SIGSEGV")
LLVM = {"kind": "llvm", "num-cores": 2}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quarantine.jsonl"


def entry(hash: str, failure: Failure = CRASH, target: dict[str, object] = LLVM) -> Quarantined:
    return Quarantined(hash, target, "0abc", failure, "0001-net", 5.0)


def test_what_is_added_comes_back_once_and_for_its_kind_of_target(path: Path) -> None:
    Quarantine(path).add([])
    assert Quarantine(path).failures("llvm") == {} and not path.exists()
    slow = Failure("build", "timeout", "killed after 20 s")
    mistake = Failure("build", "error", "too deep")  # which does no harm
    for _ in range(2):
        Quarantine(path).add([entry("a"), entry("b", slow), entry("c", target={"kind": "cuda"}), entry("d", mistake)])
    assert Quarantine(path).failures("llvm") == {"a": CRASH, "b": slow}
    assert Quarantine(path).failures("cuda") == {"c": CRASH}
    assert len(RecordLog(path, *FORMAT).read()) == 3
    assert from_json(Quarantined, to_json(entry("a"))) == entry("a")


def test_a_damaged_line_and_one_that_is_no_entry_are_passed_over(path: Path) -> None:
    Quarantine(path).add([entry(name) for name in "abc"])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(b'"b"', b'"x"'), *lines[3:]]))
    RecordLog(path, *FORMAT).append([{"hash": "d", "target": LLVM}, {**to_json(entry("e")), "failure": "bad"}])
    assert set(Quarantine(path).failures("llvm")) == {"a", "c"}


def test_a_torn_tail_costs_the_last_entry_only_and_is_cut_off_by_the_next(path: Path) -> None:
    Quarantine(path).add([entry(name) for name in "ab"])
    path.write_bytes(path.read_bytes()[:-9])
    assert set(Quarantine(path).failures("llvm")) == {"a"}
    Quarantine(path).add([entry("c")])
    assert set(Quarantine(path).failures("llvm")) == {"a", "c"}
    Quarantine(path).add([entry("b")])
    assert set(Quarantine(path).failures("llvm")) == {"a", "b", "c"}


def test_a_newer_one_is_refused_and_no_daemon_serves_where_it_is(workspace: Workspace) -> None:
    """Rather than have every stage of every job fail at it."""
    path = workspace.quarantine
    RecordLog(path, FORMAT[0], FORMAT[1] + 1).append([to_json(entry("a"))])
    with pytest.raises(NewerFormat):
        Quarantine(path).failures("llvm")
    with pytest.raises(NewerFormat):
        Quarantine(path).add([entry("b")])
    with pytest.raises(NewerFormat, match="newer autotune"):
        Daemon(workspace, Config(), drain=True).run()
    assert not workspace.daemon_info.exists()


def test_what_did_harm_on_boards_may_run_elsewhere(path: Path) -> None:
    here = entry("a")
    Quarantine(path).add([here, replace(here, board="phone"), replace(here, hash="b", board="phone")])
    assert set(Quarantine(path).failures("llvm")) == {"a"}
    assert set(Quarantine(path).failures("llvm", "phone")) == {"a", "b"}
