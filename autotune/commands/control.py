"""Write down what the user wants of a job: to cancel, hold, release or retry it. The daemon obeys it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import typer

from autotune.commands.render import REQUEST_DONE
from autotune.commands.terminal import Jobs, tell, workspace_of
from autotune.errors import BadState, StorageError
from autotune.storage import formats, journal, locks
from autotune.storage.formats import ENDED, Control, JobState, Wanted
from autotune.storage.job_files import read_control, read_state
from autotune.storage.job_state import effective_state
from autotune.storage.journal import ControlVerb, UserRequest
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.watch import nudge


def _stop(wanted: Wanted, control: Control, state: JobState) -> Control | str:
    current = effective_state(control, state)
    return f"it is {current} already" if current in ENDED else replace(control, wanted=wanted, reason=None)


def _release(control: Control, state: JobState) -> Control | str:
    held = effective_state(control, state) == "held"
    return replace(control, wanted="run", reason=None) if held else "it is not held"


def _retry(control: Control, state: JobState) -> Control | str:
    current = effective_state(control, state)
    incomplete = any(task.set_aside for task in state.tasks)
    if current in ("failed", "cancelled") or (current == "done" and incomplete):
        again = replace(control, wanted="run", reason=None, retries=max(control.retries, state.retries_seen) + 1)
        no_time = state.reason is not None and state.reason.kind == "no-time"
        return _forgiving(again, state) if no_time else again
    return f"it is {current}; only a failed or cancelled job can be retried"


def _forgiving(control: Control, state: JobState) -> Control:
    """Give a job its whole budget again, as all of its trials have failed."""
    before = dict(enumerate(control.forgiven))
    trials = tuple(before.get(index, 0) + task.trials for index, task in enumerate(state.tasks))
    return replace(control, forgiven=trials, forgiven_at=time.time())


# The new control of a job, or why the verb does not fit it.
_CHANGES: dict[ControlVerb, Callable[[Control, JobState], Control | str]] = {
    "cancel": partial(_stop, "cancel"),
    "hold": partial(_stop, "hold"),
    "release": _release,
    "retry": _retry,
}


def apply(workspace: Workspace, verb: ControlVerb, jobs: list[JobPaths]) -> list[str]:
    """Request the same of every job.

    Args:
        workspace: Where the jobs are.
        verb: What to request.
        jobs: The jobs. None of them changes unless the verb fits all of them.

    Returns:
        A line about each job, for users.

    Raises:
        BadState: One of the jobs is in a state that the verb does not fit.
        DiskProblem: A file could not be written. The jobs before it have changed.
    """
    if not jobs:  # nor need there be a queue
        return []
    with locks.exclusive(workspace.queue_lock):
        changes = {}
        for job in jobs:
            if not job.folder.exists():  # `clean` removed it since its id was looked up
                raise BadState(f"cannot {verb} job {job.id}: it was removed meanwhile")
            following = _CHANGES[verb](read_control(job), read_state(job))
            if isinstance(following, str):
                raise BadState(f"cannot {verb} job {job.id}: {following}")
            changes[job] = following
        for job, following in changes.items():
            formats.write(job.control, following)
            with suppress(StorageError):  # the request holds even if the journal cannot be written
                journal.append(job.journal, UserRequest(verb))
    nudge(workspace.jobs)
    return [f"job {job.id} {REQUEST_DONE[verb]}" for job in changes]


def _command(verb: ControlVerb) -> Callable[..., None]:
    def command(context: typer.Context, jobs: Jobs) -> None:
        from autotune.commands.jobs import select

        workspace = workspace_of(context)
        for line in apply(workspace, verb, select(workspace, jobs)):
            tell(line)

    return command


cancel, hold, release = _command("cancel"), _command("hold"), _command("release")
