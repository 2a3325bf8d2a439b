"""Wait until jobs have ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from autotune.commands.job_status import JobStatus, snapshot
from autotune.commands.terminal import Jobs, tell, workspace_of
from autotune.errors import BadInput, TimedOut
from autotune.storage.paths import JobPaths, Workspace

_POLL_S = 0.5


def wait(
    workspace: Workspace,
    jobs: Sequence[JobPaths],
    timeout_s: float | None,
    progress: Callable[[Sequence[JobStatus]], None] = lambda jobs: None,
) -> list[JobStatus]:
    """Block until all of the jobs have ended.

    Args:
        workspace: Where the jobs are.
        timeout_s: How many seconds to wait at most; None for no limit.
        progress: Called with the status of the jobs whenever it is read.

    Returns:
        The status of the jobs at their end.

    Raises:
        TimedOut: Not all jobs have ended after `timeout_s`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        statuses = snapshot(workspace, jobs)
        progress(statuses)
        left = [job for job in statuses if not job.ended]
        if not left:
            return statuses
        if deadline is not None and time.monotonic() >= deadline:
            raise TimedOut(f"{len(left)} of {len(statuses)} jobs have not ended after {timeout_s:g} s")
        time.sleep(_POLL_S if deadline is None else min(_POLL_S, max(0.0, deadline - time.monotonic())))


def command(
    context: typer.Context,
    jobs: Jobs,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Give up after S seconds (exit 124).")
    ] = None,
) -> None:
    """Wait until jobs have ended. Exit code 1 if one of them failed or was cancelled."""
    from autotune.commands.jobs import select

    if timeout is not None and math.isnan(timeout):
        raise BadInput("--timeout nan: give a number of seconds")
    workspace = workspace_of(context)
    statuses = wait(workspace, select(workspace, jobs), timeout)
    for job in statuses:
        tell(f"job {job.id} ({job.name}): {job.state}{': ' + job.reason if job.reason else ''}")
    if any(job.state != "done" for job in statuses):
        raise typer.Exit(1)
