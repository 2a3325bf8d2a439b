"""Where the time of jobs went: from their submission to their end, or to now.

Every moment of a job counts once, as the first of these that is true of it:
1. a stage of it ran: `train`, `measure`, `build` or `search`; of several, the one furthest along its round;
2. `ended`: it was over, and retried later;
3. `held`: by the user;
4. `stopped`: no daemon served the workspace;
5. `unknown`: between stages that an older autotune noted, which did not note the rest;
6. it waited, for what the journal said last: a `cpu`, a `device`, another job with the same `task`, its `turn`, the
   `window`, or a `lease` that somebody else has.
So the parts sum to the whole. A stage counts from when the daemon handed it to a worker, which may have to load first.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import typer

from autotune.commands import status
from autotune.commands.status import JobStatus
from autotune.commands.terminal import Json, show, tell, workspace_of
from autotune.daemon import uptime
from autotune.errors import BadInput
from autotune.planning.waiting import About
from autotune.storage import formats
from autotune.storage.daemon_info import running_daemon
from autotune.storage.formats import KINDS, DaemonInfo, State
from autotune.storage.journal import FORMAT as JOURNAL
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.record_log import RecordLog

WAITS: tuple[str, ...] = get_args(About)
PARTS: tuple[str, ...] = (*KINDS, *(f"waits {about}" for about in WAITS), "held", "unknown", "ended", "stopped")
_ENDS = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Times:
    """The wall time of a job and its parts, in seconds. `until` is its end, or when the report was made."""

    id: int
    name: str
    state: State
    submitted_at: float
    until: float
    wall_s: float
    parts: dict[str, float]


@dataclass
class _Now:
    """What holds at a moment of the sweep."""

    stages: dict[str, int]
    served: bool = False
    known: bool = True
    held: bool = False
    ended: bool = False
    about: str = "turn"

    @property
    def part(self) -> str:
        running = [kind for kind in KINDS if self.stages[kind] > 0]
        if running:
            return running[-1]
        if self.ended or self.held:
            return "ended" if self.ended else "held"
        if not self.served:
            return "stopped" if self.known else "unknown"
        return f"waits {self.about}"


@dataclass(frozen=True)
class _Change:
    """What a moment changes: `field` of `_Now`, or how many stages of a kind run."""

    at: float
    field: str
    value: Any


def attribute(
    records: Iterable[Mapping[str, Any]], served: Sequence[tuple[float, float]], begin: float, end: float
) -> dict[str, float]:
    """The seconds from `begin` to `end` by part; they sum to `end - begin`.

    Args:
        records: the journal of the job, and with `event` "running" and `began` the stages that still run.
        served: when a daemon served the workspace.
    """
    changes = [*_of_journal(records, served), *_of_daemons(served)]
    now, parts, at = _Now(dict.fromkeys(KINDS, 0)), dict.fromkeys(PARTS, 0.0), begin
    for change in sorted(changes, key=lambda change: change.at):
        if change.at > at:
            parts[now.part] += min(change.at, end) - min(at, end)
            at = change.at
        if change.field in now.stages:
            now.stages[change.field] += change.value
        else:
            setattr(now, change.field, change.value)
    parts[now.part] += max(0.0, end - at)
    return parts


def _of_journal(records: Iterable[Mapping[str, Any]], served: Sequence[tuple[float, float]]) -> Iterable[_Change]:
    noted_from = served[0][0] if served else math.inf
    last_before: float | None = None
    for record in records:
        at, event = float(record.get("at", 0.0)), record.get("event")
        if event in ("stage", "stage failed", "running") and record.get("kind") in KINDS:
            began = float(record.get("began", at - float(record.get("seconds", 0.0))))
            yield _Change(min(began, at), str(record["kind"]), 1)
            yield _Change(at, str(record["kind"]), -1)
            last_before = at if at < noted_from else last_before
        elif event == "waits" and record.get("about") in WAITS:
            yield _Change(at, "about", record["about"])
        elif event in ("held", "released"):
            yield _Change(at, "held", event == "held")
        elif event in _ENDS:
            yield _Change(at, "ended", True)
        elif event == "to be retried":
            yield _Change(at, "ended", False)
            yield _Change(at, "held", False)
    if last_before is not None:
        yield _Change(-math.inf, "known", False)
        yield _Change(last_before, "known", True)


def _of_daemons(served: Sequence[tuple[float, float]]) -> Iterable[_Change]:
    for start, stop in served:
        yield _Change(start, "served", True)
        yield _Change(start, "about", "turn")
        yield _Change(stop, "served", False)


def reports(workspace: Workspace, jobs: Sequence[JobPaths], now: float) -> list[Times]:
    """Of every job where its time went.

    Raises:
        StorageError: a journal cannot be read.
    """
    daemon = running_daemon(workspace)
    served = uptime.served(workspace)
    if daemon is None and served and served[-1][1] == math.inf:
        served[-1] = (served[-1][0], _last_seen(workspace, served[-1][0]))
    shown = status.snapshot(workspace, jobs)
    return [_times(paths, job, daemon, served, now) for paths, job in zip(jobs, shown, strict=True)]


def _last_seen(workspace: Workspace, otherwise: float) -> float:
    """Until when a daemon lived that was killed: when it last wrote of itself."""
    try:
        return workspace.daemon_info.stat().st_mtime
    except FileNotFoundError:
        return otherwise


def _times(
    paths: JobPaths, job: JobStatus, daemon: DaemonInfo | None, served: Sequence[tuple[float, float]], now: float
) -> Times:
    records = RecordLog(paths.journal, *JOURNAL).read()
    if daemon is not None:
        mine = [stage for stage in daemon.running if stage.job == job.id]
        records += [{"event": "running", "kind": it.kind, "began": it.started_at, "at": now} for it in mine]
    begin, end = job.submitted_at or now, now
    if job.ended:
        over = [float(record["at"]) for record in records if record.get("event") in _ENDS]
        end = job.finished_at or (over[-1] if over else now)
    end = max(begin, end)
    return Times(job.id, job.name, job.state, begin, end, end - begin, attribute(records, served, begin, end))


def to_json(found: Sequence[Times]) -> dict[str, Any]:
    """The documented form of `report --json`."""
    return {"version": 1, "jobs": [formats.to_json(times) for times in found]}


def command(
    context: typer.Context,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB...]", help="7, 3,5-8, a name, last, all")] = None,
    every: Annotated[bool, typer.Option("--all", help="All jobs.")] = False,
    as_json: Json = False,
) -> None:
    """Say where the time of jobs went: in stages, waiting, or without a daemon."""
    from autotune.commands import render
    from autotune.commands.jobs import select

    workspace = workspace_of(context)
    if bool(jobs) == every:
        raise BadInput("give JOB..., or --all")
    found = reports(workspace, workspace.job_list() if every else select(workspace, jobs or []), time.time())
    tell(json.dumps(to_json(found))) if as_json else show(render.times(found))
