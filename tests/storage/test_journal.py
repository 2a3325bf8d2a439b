"""Events are read back as they were written, and what makes no sense is kept as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import NewerFormat
from autotune.reasons import Reason
from autotune.storage import journal
from autotune.storage.journal import (
    Event,
    EventKind,
    JobEnded,
    OnEnd,
    StageDone,
    StageFailed,
    StageFileDamaged,
    TaskSetAside,
    UnknownEvent,
    UserRequest,
    WaitStarted,
)
from autotune.storage.record_log import RecordLog

PLACE: dict[str, Any] = {"task": 1, "round": 2, "began": 7.5, "seconds": 2.0, "cpus": (0, 1), "at": 9.5}
EVENTS: list[Event] = [
    StageDone(kind="measure", device="cuda:0", summary={"measured": 4, "best_us": 2.5}, **PLACE),
    StageFailed(kind="build", outcome="crashed", detail="the worker died", **PLACE),
    StageFileDamaged("t000-r0000.json is damaged", at=1.0),
    WaitStarted(Reason("device", device="cuda"), at=2.0),
    TaskSetAside(3, "build: crashed: the worker died", at=3.0),
    *(UserRequest(verb, at=4.0) for verb in ("cancel", "hold", "release", "retry")),
    JobEnded("done", Reason("budget-used", set_aside=1, detail="build: crashed"), at=5.0),
    OnEnd("others may write to jobs/0001-net", at=6.0),
]


def test_every_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for event in EVENTS:
        journal.append(path, event)
    assert journal.read(path) == EVENTS
    assert {event.EVENT for event in EVENTS} == set(EventKind)


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    RecordLog(path, journal.FORMAT[0], journal.FORMAT[1] + 1).append([{"at": 1.0, "event": "held"}])
    with pytest.raises(NewerFormat):
        journal.read(path)


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"event": "painted", "colour": "red"},
        {"event": ["held"]},
        {"at": "noon", "event": "held"},
        {"at": 1.0, "event": "stage", "kind": "paint", "seconds": 1.0},
        {"at": 1.0, "event": "stage-done", "kind": "build"},
        {"at": 1.0, "event": "waiting", "reason": "a sentence"},
        {"at": float("inf"), "event": "requested", "verb": "paint"},
    ],
)
def test_what_makes_no_sense_is_kept_as_it_is(line: dict[str, Any]) -> None:
    event = journal.parse(line)
    assert isinstance(event, UnknownEvent)
    assert event.fields == {key: value for key, value in line.items() if key not in ("at", "event")}
