"""Read a job's journal, to its end or as it grows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from autotune.commands.terminal import OneJob, tell, workspace_of
from autotune.storage.formats import ENDED
from autotune.storage.job_files import read_control, read_state
from autotune.storage.journal import FORMAT as JOURNAL
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.record_log import START, RecordLog

_POLL_S = 0.5


def _ended(paths: JobPaths) -> bool:
    """Whether the daemon is done with a job, and was not asked to retry it."""
    state = read_state(paths)
    return state.state in ENDED and read_control(paths).retries <= state.retries_seen


def records(workspace: Workspace, paths: JobPaths, follow: bool) -> Iterator[dict[str, Any]]:
    """What happened to a job, oldest first; with `follow`, until it has ended or is gone."""
    log, place, given = RecordLog(paths.journal, *JOURNAL), START, 0
    while True:
        over = not follow or not paths.folder.exists() or _ended(paths)
        tail = log.read_from(place)
        # A journal that was mended is read anew; its sound lines are the same as before.
        new = tail.records[given:] if tail.restarted else tail.records
        yield from new
        place, given = tail.position, given + len(new)
        if over:
            return
        time.sleep(_POLL_S)


def command(
    context: typer.Context,
    job: OneJob,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
) -> None:
    """Print what happened to a job, stage by stage."""
    from autotune.commands import render
    from autotune.commands.jobs import select_one

    workspace = workspace_of(context)
    for record in records(workspace, select_one(workspace, job), follow):
        tell(render.journal_line(record))
