"""A recording of durable calls is read as a power cut would read it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kills import points
from kills.power import violations
from kills.run import HOOK, hooked

ROOT = "/w"
JOB = f"{ROOT}/jobs/0001-net"


class Recording:
    """Durable calls, as `points` records them."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []

    def __call__(self, call: str, path: str, role: str = "stage", pid: int = 1, **details: Any) -> Recording:
        site = f"{role} {call} after {points.kind_of(path, [ROOT])}"
        self.trace.append({"pid": pid, "site": site, "path": path, **details})
        return self

    def publish(self, path: str, leave_out: str = "") -> Recording:
        """The calls that publish a file, less one."""
        temporary = os.path.join(os.path.dirname(path), ".tmp-1-ab")
        steps = {
            "open": {"path": temporary, "new": True, "append": False},
            "write": {"path": temporary},
            "fsync": {"path": temporary},
            "replace": {"path": path, "source": temporary},
            "sync": {"path": os.path.dirname(path)},
        }
        for name, details in steps.items():
            if name != leave_out:
                self("fsync" if name == "sync" else name, **details)
        return self


@pytest.fixture
def record() -> Recording:
    return Recording()


def test_a_published_file_is_in_order(record: Recording) -> None:
    record.publish(f"{JOB}/state.json")("exit", ROOT)
    assert violations(record.trace) == []


def test_a_file_renamed_before_it_was_synced_is_not(record: Recording) -> None:
    record.publish(f"{JOB}/state.json", leave_out="fsync")
    assert violations(record.trace) == ["stage published jobs/JOB/state.json before its content was durable"]


def test_a_rename_that_was_told_of_before_its_folder_was_synced_is_a_loss(record: Recording) -> None:
    record.publish(f"{JOB}/state.json", leave_out="sync")
    assert violations(record.trace) == [], "nobody was told"
    record("tell", ROOT, pid=2)
    assert violations(record.trace) == [], "another process told something else"
    record("tell", ROOT)
    assert violations(record.trace) == ["stage told another process before the name #-net/state.json was durable"]


def test_letting_go_of_a_lock_tells_others(record: Recording) -> None:
    record.publish(f"{JOB}/control.json", leave_out="sync")("flock", f"{ROOT}/jobs/.lock", unlock=True)
    assert len(violations(record.trace)) == 1


def test_a_published_file_is_not_written_in_place(record: Recording) -> None:
    path = f"{JOB}/state.json"
    record("open", path, new=False, append=False)("write", path)("fsync", path)
    assert violations(record.trace) == ["stage wrote jobs/JOB/state.json in place"]


def test_a_log_is_appended_to_and_synced(record: Recording) -> None:
    log = f"{ROOT}/logs/tuning/llvm/ab.jsonl"
    record("open", log, new=False, append=True)("write", log)("fsync", log)("tell", ROOT)
    assert violations(record.trace) == []
    record("write", log)("tell", ROOT)
    assert violations(record.trace) == ["stage told another process before the content of llvm/ab.jsonl was durable"]


def test_a_folder_is_published_with_everything_in_it(record: Recording) -> None:
    incoming = f"{ROOT}/jobs/.incoming-1-ab"
    record("mkdir", incoming)("mkdir", f"{incoming}/stages")("exit", ROOT, pid=2)
    record("rename", JOB, source=incoming)
    assert violations(record.trace) == ["stage published jobs/JOB before the names in it were durable"]


def test_a_new_folder_is_durable_only_with_its_name(record: Recording) -> None:
    record("mkdir", f"{ROOT}/logs/tuning")("tell", ROOT)
    assert violations(record.trace) == ["stage told another process before the name logs/tuning was durable"]


def test_a_stage_logs_nothing_after_it_published_what_follows(record: Recording) -> None:
    log = f"{ROOT}/logs/tuning/llvm/ab.jsonl"
    record.publish(f"{JOB}/stages/t000-r0001.json")
    record("open", log, new=False, append=True)("write", log)("fsync", log)
    assert violations(record.trace) == ["stage logged a trial after it had published what follows"]


def test_what_may_be_lost_may_be_lost(record: Recording) -> None:
    job = "jobs/0001-net"
    lost = (f"{job}/artifacts/t000-r0001/a.so", f"{job}/stages/.t000-r0001.now", "jobs/.incoming-1-a/x")
    for path in ("jobs/.lock", "jobs/.daemon.json", *lost):
        record("open", f"{ROOT}/{path}", new=True, append=False)("write", f"{ROOT}/{path}")
    record("exit", ROOT)
    assert violations(record.trace) == []


PUBLISH = """
import sys
from pathlib import Path
from autotune.storage import atomic
{sabotage}
atomic.publish_bytes(Path(sys.argv[1]), b"content")
"""


def recorded(folder: Path, sabotage: str = "") -> list[dict[str, Any]]:
    """The trace of a process that publishes a file."""
    orders = folder / "orders"
    root = folder / "root"
    orders.mkdir()
    root.mkdir()
    text = {"roots": [str(root)], "record": True, "kills": [], "daemon_info": ""}
    (orders / points.ORDERS).write_text(json.dumps(text))
    environment = {**hooked(HOOK), points.VARIABLE: str(orders)}
    code = PUBLISH.format(sabotage=sabotage)
    subprocess.run([sys.executable, "-c", code, str(root / "file")], env=environment, check=True, timeout=60)
    return [json.loads(line) for line in (orders / points.TRACE).read_text().splitlines()]


def test_what_the_storage_does_is_in_order(tmp_path: Path) -> None:
    assert violations(recorded(tmp_path)) == []


@pytest.mark.parametrize(
    ("sabotage", "fault"),
    [
        ("atomic.os.fsync = lambda descriptor: None", "published file before its content was durable"),
        ("atomic.sync_folder = lambda folder: None", "ended before the name root/file was durable"),
    ],
)
def test_a_sync_that_is_left_out_is_found(tmp_path: Path, sabotage: str, fault: str) -> None:
    assert any(fault in line for line in violations(recorded(tmp_path, sabotage)))


def test_an_index_is_written_after_its_log(record: Recording) -> None:
    log = f"{ROOT}/logs/tuning/cpu/ab.jsonl"
    index = f"{ROOT}/logs/tuning/cpu/ab.index"
    record("open", log, append=True)("write", log)("fsync", log)("open", index, append=True)("write", index)
    assert violations(record("exit", ROOT).trace) == []
    record("write", log)("write", index)("fsync", log)
    assert violations(record("exit", ROOT).trace) == [
        "stage wrote logs/tuning/TARGET/HASH.index before its log was durable"
    ]
