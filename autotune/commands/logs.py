"""Read a job's journal, to its end or as it grows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from autotune.commands.render import REQUEST_DONE
from autotune.commands.terminal import OneJob, tell, workspace_of
from autotune.errors import one_line
from autotune.reasons import sentence
from autotune.storage import journal
from autotune.storage.job_files import read_control, read_state
from autotune.storage.job_state import has_ended
from autotune.storage.log_lines import START
from autotune.storage.paths import JobPaths

_POLL_S = 0.5


def events(paths: JobPaths, follow: bool) -> Iterator[journal.Event | journal.UnknownEvent]:
    """Yield what happened to a job, oldest first.

    Args:
        follow: Wait for further events until the job has ended or is removed.

    Raises:
        StorageError: A file of the job cannot be read.
    """
    log = journal.log_of(paths.journal)
    place = START
    given = 0
    while True:
        last = not follow or not paths.folder.exists() or has_ended(read_control(paths), read_state(paths))
        tail = log.read_from(place)
        # After a mend the log is read from its start. Its sound lines are the same as before.
        new = tail.records[given:] if tail.restarted else tail.records
        yield from map(journal.parse, new)
        place = tail.position
        given += len(new)
        if last:
            return
        time.sleep(_POLL_S)


def line(event: journal.Event | journal.UnknownEvent) -> str:
    """Return one line of `logs`."""
    try:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
        return one_line(f"{moment}  {_described(event)}")
    except (ValueError, OverflowError, OSError):  # no calendar has such a time
        return one_line(event)


def _described(event: journal.Event | journal.UnknownEvent) -> str:
    match event:
        case journal.StageDone():
            return f"{_stage(event)}  {_listed(event.summary)}"
        case journal.StageFailed():
            return f"{_stage(event)}  FAILED reason {event.diagnosis}"
        case journal.StageFileDamaged():
            return f"damaged: reason {event.detail}"
        case journal.WaitStarted():
            return sentence(event.reason)
        case journal.TaskSetAside():
            return f"set aside task {event.task}: reason {event.detail}"
        case journal.UserRequest():
            return REQUEST_DONE[event.verb]
        case journal.JobEnded():
            return f"{event.state}: reason {sentence(event.reason)}" if event.reason else event.state
        case journal.OnEnd():
            return (
                f"the --on-end command is not run: {event.refused}" if event.refused else "the --on-end command starts"
            )
        case journal.UnknownEvent():
            return f"{event.name}: {_listed(event.fields)}" if event.fields else event.name


def _stage(event: journal.StageEvent) -> str:
    return f"{event.kind:<7} task {event.task} round {event.round}  {event.seconds:.2f} s"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)


def command(
    context: typer.Context,
    job: OneJob,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing until the job has ended.")] = False,
) -> None:
    """Print what happened to a job, stage by stage."""
    from autotune.commands.jobs import select_one

    for event in events(select_one(workspace_of(context), job), follow):
        tell(line(event))
