"""Read a job's journal, to its end or as it grows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from autotune.commands.terminal import OneJob, tell, workspace_of
from autotune.storage import journal
from autotune.storage.job_files import read_control, read_state
from autotune.storage.job_state import has_ended
from autotune.storage.journal import Event, UnknownEvent
from autotune.storage.log_lines import START
from autotune.storage.paths import JobPaths

_POLL_S = 0.5


def events(paths: JobPaths, follow: bool) -> Iterator[Event | UnknownEvent]:
    """Yield what happened to a job, oldest first.

    Args:
        paths: The job.
        follow: Wait for further events until the job has ended or is removed.

    Raises:
        StorageError: A file of the job cannot be read.
    """
    log, place, given = journal.log_of(paths.journal), START, 0
    while True:
        last = not follow or not paths.folder.exists() or has_ended(read_control(paths), read_state(paths))
        tail = log.read_from(place)
        # After a mend the log is read from its start. Its sound lines are the same as before.
        new = tail.records[given:] if tail.restarted else tail.records
        yield from map(journal.parse, new)
        place, given = tail.position, given + len(new)
        if last:
            return
        time.sleep(_POLL_S)


def command(
    context: typer.Context,
    job: OneJob,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing until the job has ended.")] = False,
) -> None:
    """Print what happened to a job, stage by stage."""
    from autotune.commands import render
    from autotune.commands.jobs import select_one

    for event in events(select_one(workspace_of(context), job), follow):
        tell(render.journal_line(event))
