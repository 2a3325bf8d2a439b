"""Cancel, hold, release and retry: what the user wants of a job, written for the daemon to obey."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import typer

from autotune.commands.terminal import Jobs, tell, workspace_of
from autotune.daemon.watch import nudge
from autotune.errors import BadState, StorageError
from autotune.storage import formats, locks
from autotune.storage.formats import ENDED, Control, JobState, State
from autotune.storage.job_files import read_control, read_state
from autotune.storage.journal import note
from autotune.storage.paths import JobPaths, Workspace


@dataclass(frozen=True)
class _Verb:
    """How a verb changes a job: `change` returns the new control, or a text that says why it cannot."""

    change: Callable[[Control, JobState], Control | str]
    past: str


def _standing(control: Control, state: JobState) -> State:
    """The state of a job once the daemon has obeyed what was asked for until now."""
    if state.state in ENDED and control.retries <= state.retries_seen:
        return state.state
    wanted: dict[str, State] = {"cancel": "cancelled", "hold": "held"}
    return wanted.get(control.wanted, "waiting" if state.state in ENDED else state.state)


def _cancel(control: Control, state: JobState) -> Control | str:
    standing = _standing(control, state)
    return f"it is {standing} already" if standing in ENDED else replace(control, wanted="cancel", reason="")


def _hold(control: Control, state: JobState) -> Control | str:
    standing = _standing(control, state)
    return f"it is {standing} already" if standing in ENDED else replace(control, wanted="hold", reason="")


def _release(control: Control, state: JobState) -> Control | str:
    return replace(control, wanted="run", reason="") if _standing(control, state) == "held" else "it is not held"


def _retry(control: Control, state: JobState) -> Control | str:
    standing = _standing(control, state)
    aside = any(task.set_aside for task in state.tasks)
    if standing in ("failed", "cancelled") or (standing == "done" and aside):
        return Control("run", max(control.retries, state.retries_seen) + 1)
    return f"it is {standing}; only a failed or cancelled job can be retried"


_VERBS = {
    "cancel": _Verb(_cancel, "cancelled"),
    "hold": _Verb(_hold, "held"),
    "release": _Verb(_release, "released"),
    "retry": _Verb(_retry, "to be retried"),
}


def apply(workspace: Workspace, verb: str, jobs: list[JobPaths]) -> list[str]:
    """Do the verb to every job; returns a line for each.

    Raises:
        BadState: one of them is not in a state for it; none was changed.
        DiskProblem: a file could not be written.
    """
    rule = _VERBS[verb]
    with locks.exclusive(workspace.queue_lock):
        changes = {}
        for job in jobs:
            if not job.folder.exists():  # `clean` took it since it was looked up
                raise BadState(f"cannot {verb} job {job.id}: it was removed meanwhile")
            following = rule.change(read_control(job), read_state(job))
            if isinstance(following, str):
                raise BadState(f"cannot {verb} job {job.id}: {following}")
            changes[job] = following
        for job, following in changes.items():
            formats.write(job.control, following)
            with suppress(StorageError):  # what was asked for holds, whether its journal takes the line or not
                note(job, rule.past)
    nudge(workspace.jobs)
    return [f"job {job.id} {rule.past}" for job in changes]


def _command(verb: str) -> Callable[..., None]:
    def command(context: typer.Context, jobs: Jobs) -> None:
        from autotune.commands.jobs import select

        workspace = workspace_of(context)
        for line in apply(workspace, verb, select(workspace, jobs)):
            tell(line)

    return command


cancel, hold, release, retry = map(_command, ("cancel", "hold", "release", "retry"))
