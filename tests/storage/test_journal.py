"""Events are read back as they were written, and what version 1 wrote is understood too, line by line."""

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
# A line of version 1 and what it means. Its places of stages are those of `PLACE`.
STAGE_V1 = {"at": 9.5, "kind": "build", "task": 1, "round": 2, "began": 7.5, "cpus": [0, 1], "seconds": 2.0}
VERSION_1: list[tuple[dict[str, Any], Event]] = [
    ({**STAGE_V1, "event": "stage", "built": 4}, StageDone(kind="build", summary={"built": 4}, **PLACE)),
    (
        {**STAGE_V1, "event": "stage failed", "reason": "no memory"},
        StageFailed(kind="build", detail="no memory", **PLACE),
    ),
    ({"at": 1.0, "event": "damaged", "reason": "x is damaged"}, StageFileDamaged("x is damaged", at=1.0)),
    (
        {"at": 1.0, "event": "waits", "about": "lease", "reason": "cpu-0 in use"},
        WaitStarted(Reason("lease", wording="cpu-0 in use"), at=1.0),
    ),
    ({"at": 1.0, "event": "set aside", "task": 2, "reason": "crashed"}, TaskSetAside(2, "crashed", at=1.0)),
    ({"at": 1.0, "event": "held"}, UserRequest("hold", at=1.0)),
    ({"at": 1.0, "event": "released"}, UserRequest("release", at=1.0)),
    ({"at": 1.0, "event": "to be retried"}, UserRequest("retry", at=1.0)),
    ({"at": 1.0, "event": "cancelled"}, UserRequest("cancel", at=1.0)),
    (
        {"at": 1.0, "event": "cancelled", "reason": "cancelled"},
        JobEnded("cancelled", Reason("unspecified", wording="cancelled"), at=1.0),
    ),
    (
        {"at": 1.0, "event": "done", "reason": "budget used"},
        JobEnded("done", Reason("unspecified", wording="budget used"), at=1.0),
    ),
    (
        {"at": 1.0, "event": "failed", "reason": "crashed"},
        JobEnded("failed", Reason("unspecified", wording="crashed"), at=1.0),
    ),
]


def test_every_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for event in EVENTS:
        journal.append(path, event)
    assert journal.read(path) == EVENTS
    assert {event.EVENT for event in EVENTS} == set(EventKind)


@pytest.mark.parametrize(("line", "event"), VERSION_1)
def test_a_line_of_version_1_is_understood(line: dict[str, Any], event: Event) -> None:
    assert journal.parse(line) == event


def test_no_event_has_a_name_of_version_1() -> None:
    """A line tells its version by its name: the header tells only which version began the journal."""
    assert not {kind.value for kind in EventKind} & {line["event"] for line, _ in VERSION_1}


def test_a_journal_that_version_1_began_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    RecordLog(path, journal.FORMAT[0], 1).append([{"at": 1.0, "event": "held"}])
    journal.append(path, UserRequest("release", at=2.0))
    assert journal.read(path) == [UserRequest("hold", at=1.0), UserRequest("release", at=2.0)]
    assert b'"version":1' in path.read_bytes().splitlines()[0]


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
