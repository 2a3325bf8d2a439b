"""Where the time of jobs went, from their submission to their end or to now.

Every moment of a job counts once, as the first of these that is true of it:
1. a stage of it ran; of several the first of `confirm`, `train`, `measure`, `build`, `search`, `compile`;
2. `ended`: it was over, and retried later;
3. `held`: by the user;
4. `stopped`: no daemon served the workspace;
5. `unknown`: it lies between stages from before the record of when daemons served begins;
6. it waited for what the journal named last: a `cpu`, a `device`, another job with the same `task`, its `turn`, the
   `window`, or a `lease` that somebody else holds.
So the parts sum to the whole. A stage counts from when the daemon gave it to a worker, which may have to load first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from autotune.commands import job_status
from autotune.commands.job_status import JobStatus
from autotune.reasons import WaitTopic
from autotune.storage import daemon_info, journal
from autotune.storage.daemon_info import DaemonInfo, RunningStage, running_daemon
from autotune.storage.formats import KINDS, State
from autotune.storage.journal import Event, JobEnded, StageEvent, UnknownEvent, UserRequest, WaitStarted
from autotune.storage.paths import JobPaths, Workspace

WAITS: tuple[str, ...] = get_args(WaitTopic)
PARTS: tuple[str, ...] = (*KINDS, *(f"waits {about}" for about in WAITS), "held", "unknown", "ended", "stopped")


@dataclass(frozen=True)
class Times:
    """The wall time of a job and its parts, in seconds, `until` its end or the time of the report."""

    id: int
    name: str
    state: State
    submitted_at: float
    until: float
    wall_s: float
    parts: dict[str, float]


@dataclass
class _Situation:
    """What is true of a job at a moment. `stages` counts the stages that run, by kind."""

    stages: dict[str, int]
    served: bool = False
    known: bool = True
    held: bool = False
    ended: bool = False
    topic: str = "turn"

    @property
    def part(self) -> str:
        running = [kind for kind in KINDS if self.stages[kind] > 0]
        if running:
            return next((kind for kind in reversed(running) if kind != "compile"), "compile")
        if self.ended or self.held:
            return "ended" if self.ended else "held"
        if not self.served:
            return "stopped" if self.known else "unknown"
        return f"waits {self.topic}"


@dataclass(frozen=True)
class _Change:
    """A change of the situation: a new value of a field, or how many more stages of a kind run."""

    at: float
    field: str
    value: Any


def attribute(
    events: Iterable[Event | UnknownEvent],
    served: Sequence[tuple[float, float]],
    begin: float,
    end: float,
    running: Sequence[RunningStage] = (),
) -> dict[str, float]:
    """Return the seconds from `begin` to `end` by part. They sum to `end - begin`.

    Args:
        events: The journal of the job.
        served: When a daemon served the workspace.
        begin: The start, in epoch seconds.
        end: The end, in epoch seconds.
        running: The stages of the job that run at the end.
    """
    changes = [*_of_journal(events, served), *_of_daemons(served)]
    for stage in running:
        changes += _of_stage(stage.kind, stage.started_at, end)
    now = _Situation(dict.fromkeys(KINDS, 0))
    seconds = dict.fromkeys(PARTS, 0.0)
    since = begin
    for change in sorted(changes, key=lambda change: change.at):
        if change.at > since:
            seconds[now.part] += min(change.at, end) - min(since, end)
            since = change.at
        if change.field in now.stages:
            now.stages[change.field] += change.value
        else:
            setattr(now, change.field, change.value)
    seconds[now.part] += max(0.0, end - since)
    return seconds


def _of_journal(events: Iterable[Event | UnknownEvent], served: Sequence[tuple[float, float]]) -> Iterable[_Change]:
    noted_from = served[0][0] if served else math.inf
    last_before: float | None = None
    for event in events:
        yield from _of_event(event)
        if isinstance(event, StageEvent):
            last_before = event.at if event.at < noted_from else last_before
    if last_before is not None:
        yield _Change(-math.inf, "known", False)
        yield _Change(last_before, "known", True)


def _of_event(event: Event | UnknownEvent) -> Iterable[_Change]:
    match event:
        case StageEvent():
            yield from _of_stage(event.kind, event.began, event.at)
        case WaitStarted() if event.reason.topic is not None:
            yield _Change(event.at, "topic", event.reason.topic)
        case UserRequest(verb="hold" | "release"):
            yield _Change(event.at, "held", event.verb == "hold")
        case UserRequest(verb="retry"):
            yield _Change(event.at, "ended", False)
            yield _Change(event.at, "held", False)
        case _ if _is_end(event):
            yield _Change(event.at, "ended", True)


def _of_stage(kind: str, began: float, ended: float) -> list[_Change]:
    return [_Change(min(began, ended), kind, 1), _Change(ended, kind, -1)]


def _is_end(event: Event | UnknownEvent) -> bool:
    """Whether a job is over with an event. A cancelled job is, also without a daemon to cancel it."""
    return isinstance(event, JobEnded) or (isinstance(event, UserRequest) and event.verb == "cancel")


def _of_daemons(served: Sequence[tuple[float, float]]) -> Iterable[_Change]:
    for start, stop in served:
        yield _Change(start, "served", True)
        yield _Change(start, "topic", "turn")
        yield _Change(stop, "served", False)


def reports(workspace: Workspace, jobs: Sequence[JobPaths], now: float) -> list[Times]:
    """Return where the time of each job went, until `now` for those that have not ended.

    Raises:
        StorageError: A journal cannot be read.
    """
    daemon = running_daemon(workspace)
    served = daemon_info.times_served(workspace)
    if daemon is None and served and served[-1][1] == math.inf:
        served[-1] = (served[-1][0], _last_seen(workspace, served[-1][0]))
    shown = job_status.snapshot(workspace, jobs)
    return [_times(paths, job, daemon, served, now) for paths, job in zip(jobs, shown, strict=True)]


def _last_seen(workspace: Workspace, otherwise: float) -> float:
    """Return when a daemon that was killed last wrote its status file, or else `otherwise`."""
    try:
        return workspace.daemon_info.stat().st_mtime
    except FileNotFoundError:
        return otherwise


def _times(
    paths: JobPaths, job: JobStatus, daemon: DaemonInfo | None, served: Sequence[tuple[float, float]], now: float
) -> Times:
    events = journal.read(paths.journal)
    running = [stage for stage in daemon.running if stage.job == job.id] if daemon is not None else []
    begin = job.submitted_at or now
    end = now
    if job.ended:
        ends = [event.at for event in events if _is_end(event)]
        end = job.finished_at or (ends[-1] if ends else now)
    end = max(begin, end)
    seconds = attribute(events, served, begin, end, running)
    return Times(job.id, job.name, job.state, begin, end, end - begin, seconds)
