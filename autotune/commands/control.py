"""Write down what the user wants of a job: to cancel, hold, release or retry it. The daemon obeys it.

`retry --here` submits a job of another machine again, for this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.commands.render import REQUEST_DONE
from autotune.commands.terminal import Jobs, steps, tell, workspace_of
from autotune.errors import BadState, StorageError
from autotune.storage import formats, journal, locks
from autotune.storage.formats import ENDED, Control, JobSpec, JobState, Wanted
from autotune.storage.job_files import check_model, read_control, read_spec, read_state
from autotune.storage.job_state import effective_state
from autotune.storage.journal import ControlVerb, UserRequest
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.private_folders import check_ours
from autotune.storage.watch import nudge

if TYPE_CHECKING:
    from autotune.commands.submit.publish import Submission
    from autotune.config import Config
    from autotune.workers.oneshot import TellProgress


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
    check_ours(workspace.jobs)
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


cancel = _command("cancel")
hold = _command("hold")
release = _command("release")


def retry(
    context: typer.Context,
    jobs: Jobs,
    here: Annotated[
        bool,
        typer.Option(
            "--here", help="For jobs of another machine: submit them again for this one, and cancel the old ones."
        ),
    ] = False,
) -> None:
    """Start failed or cancelled jobs again; they keep their trials."""
    from autotune.commands.jobs import select

    workspace = workspace_of(context)
    chosen = select(workspace, jobs)
    if not here:
        for line in apply(workspace, "retry", chosen):
            tell(line)
        return
    from autotune.config import load_config

    config = load_config(workspace.config)
    for paths in chosen:
        with steps() as step:
            spec = resubmit_here(workspace, config, paths, step)
        tell(f"job {paths.id} continues as job {spec.id} ({spec.name})")


def resubmission(paths: JobPaths, spec: JobSpec, target: str) -> Submission:
    """Return what submits the model of a job again, with its options.

    Args:
        target: The target, unless it is a job of commands.

    Raises:
        DamagedFile: Its copy of the model is damaged.
    """
    from autotune import devices
    from autotune.commands.submit.publish import Submission
    from autotune.commands.submit.words import options_of

    check_model(paths, spec)
    options = options_of(spec)
    if devices.kind_of(spec).has_model:
        plan = str(paths.plan) if paths.plan.exists() else None
        options = replace(options, target=target, plan=plan)
    return Submission(paths.snapshot, options, origin=spec.model, quantisation=spec.quantisation)


def resubmit_here(workspace: Workspace, config: Config, paths: JobPaths, progress: TellProgress) -> JobSpec:
    """Submit the model of a job again for this machine, and cancel the job.

    The trials of the other machine stay in their logs. The new job tries the best of them first, and its cost model
    learns from them, but they do not count as its own. If this is killed in between, both jobs are there.

    Args:
        workspace: Where the job is.
        progress: Called with a description of each step when it starts.

    Returns:
        The spec of the new job.

    Raises:
        BadState: The job is for this machine, or has ended.
        DamagedFile: Its copy of the model is damaged.
    """
    from autotune import devices  # here, for all of this is loaded by `submit` only
    from autotune.commands.submit.publish import submit

    spec = read_spec(paths)
    ended = effective_state(read_control(paths), read_state(paths))
    if ended in ("done", "cancelled"):
        raise BadState(f"cannot retry job {paths.id} here: it is {ended}")
    if devices.of_job(spec, config).is_here(spec.target_key):
        raise BadState(f"cannot retry job {paths.id} here: it was submitted on this machine; retry it without --here")
    again = submit(workspace, config, resubmission(paths, spec, target=spec.target_kind), progress)
    if ended != "failed":
        apply(workspace, "cancel", [paths])
    return again
