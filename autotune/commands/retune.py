"""Tune the models of jobs that have ended again, as after an upgrade, or for another target.

The trials that there are stay, and count as known: a job's new trials come beside them. Its export times the best of
both by turns, so a kernel is replaced only by a faster one.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from autotune import devices
from autotune.commands.control import resubmission
from autotune.commands.jobs import select
from autotune.commands.submit.publish import Submission, submit
from autotune.commands.submit.words import options_of
from autotune.commands.terminal import Jobs, say, steps, tell, workspace_of
from autotune.config import Config, load_config
from autotune.errors import BadInput, BadState
from autotune.options import TuningOptions
from autotune.storage.formats import ENDED, JobSpec, to_json
from autotune.storage.job_files import read_control, read_spec, read_state
from autotune.storage.job_state import effective_state
from autotune.storage.paths import JobPaths


def last_of_each(jobs: Sequence[JobPaths]) -> list[JobPaths]:
    """Return the jobs without those of which a later one has the same model and options.

    Raises:
        StorageError: A job cannot be read.
    """
    last = {_submitted(read_spec(paths)): paths for paths in jobs}
    return sorted(last.values(), key=lambda paths: paths.id)


def _submitted(spec: JobSpec) -> Hashable:
    """Return what a job was submitted with, but for the budget and the name."""
    options = replace(options_of(spec), trials=None, name=None, fresh=False)
    return spec.model_size, spec.model_crc32, json.dumps(to_json(options), sort_keys=True)


def _ended(paths: JobPaths) -> bool:
    """Return whether a job has ended, and say so if it has not."""
    state = effective_state(read_control(paths), read_state(paths))
    if state not in ENDED:
        say(f"job {paths.id} is left out: it is {state}")
    return state in ENDED


def again(paths: JobPaths, config: Config, target: str | None = None, trials: int | None = None) -> Submission:
    """Return what submits a job again.

    Args:
        target: The target; None for that of the job. Of a job of another machine or version, that is this machine.
        trials: How many trials to spend; None for as many as before.

    Raises:
        BadInput: `target` is given, and it is no job of a model.
        DamagedFile: Its copy of the model is damaged.
    """
    spec = read_spec(paths)
    if target and not devices.kind_of(spec).has_model:
        raise BadInput(f"job {paths.id} has no model, and no other target than its own")
    is_here = bool(spec.board) or devices.of_job(spec, config).is_here(spec.target_key)
    own = options_of(spec).target if is_here else spec.target_kind
    submission = resubmission(paths, spec, target or own)
    options: TuningOptions = replace(submission.options, fresh=True)
    return replace(submission, options=options if trials is None else replace(options, trials=trials))


def command(
    context: typer.Context,
    jobs: Jobs,
    target: Annotated[
        str | None, typer.Option(metavar="TARGET", help="Another target, as `submit` takes it; by default their own.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many trials to spend on each; by default as before.")
    ] = None,
) -> None:
    """Tune the models of jobs that have ended again: after an upgrade of autotune or TVM, or for a new target.

    Each is submitted again, with the options that it had, from the workspace's copy of its model. Of jobs with the same
    model and options the last is. What was measured stays: an export times the best kernels of before and those found
    now by turns, and takes a new one only if it is faster.
    """
    workspace = workspace_of(context)
    config = load_config(workspace.config)
    chosen = [paths for paths in last_of_each(select(workspace, jobs)) if _ended(paths)]
    if not chosen:
        raise BadState("no job was tuned again, because none of these has ended")
    for paths in chosen:
        with steps() as step:
            spec = submit(workspace, config, again(paths, config, target, trials), step)
        tell(f"job {paths.id} is tuned again as job {spec.id} ({spec.name}), {spec.trials} trials")
