"""Submit the model of a job of another machine again, for this one. For `retry --here`."""

from __future__ import annotations

from dataclasses import replace

from autotune import devices
from autotune.commands import control
from autotune.commands.submit.publish import Submission, submit
from autotune.commands.submit.words import options_of
from autotune.config import Config
from autotune.errors import BadState
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import check_model, read_control, read_spec, read_state
from autotune.storage.job_state import effective_state
from autotune.storage.paths import JobPaths, Workspace
from autotune.workers.oneshot import TellProgress


def resubmit_here(workspace: Workspace, config: Config, paths: JobPaths, progress: TellProgress) -> JobSpec:
    """Submit the model of a job again for this machine, and cancel the job.

    The trials of the other machine stay in their logs. The new job tries the best of them first, and its cost model
    learns from them, but they do not count as its own. If this is killed in between, both jobs are there.

    Args:
        workspace: Where the job is.
        config: The settings.
        paths: The job.
        progress: Called with a description of each step when it starts.

    Returns:
        The spec of the new job.

    Raises:
        BadState: The job is for this machine, or has ended.
        DamagedFile: Its copy of the model is damaged.
    """
    spec = read_spec(paths)
    ended = effective_state(read_control(paths), read_state(paths))
    if ended in ("done", "cancelled"):
        raise BadState(f"cannot retry job {paths.id} here: it is {ended}")
    if devices.of_job(spec, config).is_here(spec.target_key):
        raise BadState(f"cannot retry job {paths.id} here: it was submitted on this machine; retry it without --here")
    check_model(paths, spec)
    here = replace(options_of(spec), target=spec.target_kind)
    submission = Submission(paths.snapshot, here, origin=spec.model)
    again = submit(workspace, config, submission, progress)
    if ended != "failed":
        control.apply(workspace, "cancel", [paths])
    return again
