"""The journal of a job: a line of `journal.jsonl` for each event, which names its event by an `EventKind`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from autotune.errors import InvalidData
from autotune.reasons import Reason
from autotune.schema import LAST_MOMENT, moment
from autotune.storage import formats
from autotune.storage.formats import Kind, State
from autotune.storage.record_log import RecordLog

FORMAT = ("autotune-journal", 1)

ControlVerb = Literal["cancel", "hold", "release", "retry"]


class EventKind(StrEnum):
    """The names of the events in a journal."""

    STAGE_DONE = "stage-done"
    STAGE_FAILED = "stage-failed"
    STAGE_FILE_DAMAGED = "stage-file-damaged"
    WAITING = "waiting"
    TASK_SET_ASIDE = "task-set-aside"
    REQUESTED = "requested"
    ENDED = "ended"
    ON_END = "on-end"


@dataclass(frozen=True, kw_only=True)
class JournalEvent:
    """Something that happened to a job, `at` an epoch second."""

    at: Annotated[float, moment()] = field(default_factory=lambda: round(time.time(), 3))


@dataclass(frozen=True, kw_only=True)
class StageEvent(JournalEvent):
    """A stage is over.

    Attributes:
        kind: What the stage did.
        task: The index of its task in the job.
        round: The number of its round.
        began: When it held its leases, in epoch seconds.
        seconds: How long it took from then on.
        cpus: The CPUs it ran on.
        device: The device of a measurement.
    """

    kind: Kind
    task: int = 0
    round: int = 0
    began: Annotated[float, moment()]
    seconds: float
    cpus: tuple[int, ...] = ()
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class StageDone(StageEvent):
    """A stage succeeded. `summary` is what it reports of its work, such as how many candidates it `built`."""

    EVENT: ClassVar[EventKind] = EventKind.STAGE_DONE

    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StageFailed(StageEvent):
    """A stage failed. `outcome` is failed, crashed, timeout or lost; `detail` is the error."""

    EVENT: ClassVar[EventKind] = EventKind.STAGE_FAILED

    outcome: str = ""
    detail: str = ""

    @property
    def diagnosis(self) -> str:
        """What failed, how and why, in one line."""
        return f"{self.kind}: {self.outcome}: {self.detail}"


@dataclass(frozen=True)
class StageFileDamaged(JournalEvent):
    """A stage file was damaged, and was set aside. `detail` names it."""

    EVENT: ClassVar[EventKind] = EventKind.STAGE_FILE_DAMAGED

    detail: str


@dataclass(frozen=True)
class WaitStarted(JournalEvent):
    """The job waits for something else than before."""

    EVENT: ClassVar[EventKind] = EventKind.WAITING

    reason: Reason


@dataclass(frozen=True)
class TaskSetAside(JournalEvent):
    """A task is tuned no further, because its stages failed. `detail` is the diagnosis of the last failure."""

    EVENT: ClassVar[EventKind] = EventKind.TASK_SET_ASIDE

    task: int
    detail: str


@dataclass(frozen=True)
class UserRequest(JournalEvent):
    """The user asked something of the job."""

    EVENT: ClassVar[EventKind] = EventKind.REQUESTED

    verb: ControlVerb


@dataclass(frozen=True)
class JobEnded(JournalEvent):
    """The job is at its end: done, failed or cancelled."""

    EVENT: ClassVar[EventKind] = EventKind.ENDED

    state: State
    reason: Reason | None = None


@dataclass(frozen=True)
class OnEnd(JournalEvent):
    """The command for the end of the job is about to be started. If it is not, `refused` says why."""

    EVENT: ClassVar[EventKind] = EventKind.ON_END

    refused: str = ""


@dataclass(frozen=True)
class UnknownEvent(JournalEvent):
    """An event that this version does not know. `name` and `fields` are as they stand in the journal."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)


Event = StageDone | StageFailed | StageFileDamaged | WaitStarted | TaskSetAside | UserRequest | JobEnded | OnEnd
_EVENTS: dict[str, type[Event]] = {kind.EVENT.value: kind for kind in get_args(Event)}


def log_of(path: Path) -> RecordLog:
    """Return the log of records that a journal is stored in."""
    return RecordLog(path, *FORMAT)


def append(path: Path, event: Event) -> None:
    """Add an event to a journal, durably.

    Raises:
        StorageError: The journal cannot be written, or a newer version wrote it.
    """
    log_of(path).append([record_of(event)])


def record_of(event: Event) -> dict[str, Any]:
    """Return the line of a journal for an event, as `append` adds it."""
    return {"event": event.EVENT.value, **formats.to_json(event)}


def read(path: Path) -> list[Event | UnknownEvent]:
    """Return the events of a journal, oldest first; none if there is no journal.

    Raises:
        StorageError: The journal cannot be read, or a newer version wrote it.
    """
    return [parse(record) for record in log_of(path).read()]


def parse(record: Mapping[str, Any]) -> Event | UnknownEvent:
    """Return the event that a line of a journal tells of."""
    name = record.get("event")
    kind = _EVENTS.get(name) if isinstance(name, str) else None
    try:
        return _unknown(record) if kind is None else formats.from_json(kind, record)
    except InvalidData:
        return _unknown(record)


def _unknown(record: Mapping[str, Any]) -> UnknownEvent:
    time_s = record.get("at")
    rest = {key: value for key, value in record.items() if key not in ("at", "event")}
    moment = float(time_s) if isinstance(time_s, (int, float)) and abs(time_s) <= LAST_MOMENT else 0.0
    return UnknownEvent(str(record.get("event", "?")), rest, at=moment)
