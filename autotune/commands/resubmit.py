"""Submit the model of a job of another machine again, for this one. For `retry --here`."""

from __future__ import annotations

from autotune import devices
from autotune.commands import control, submit
from autotune.commands.submission import Submission
from autotune.config import Config
from autotune.errors import BadState
from autotune.storage.formats import InputSpec, JobSpec
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
    found = submit.submit(workspace, config, _submission(paths, spec), progress)
    if ended != "failed":
        control.apply(workspace, "cancel", [paths])
    return found


def _submission(paths: JobPaths, spec: JobSpec) -> Submission:
    inputs, dims = _shapes(spec)
    return Submission(
        model=paths.snapshot,
        origin=spec.model,
        target=spec.target_kind,
        trials=0 if spec.automatic else spec.trials,
        trials_per_round=spec.trials_per_round,
        inputs=inputs,
        dims=dims,
        values=spec.values,
        priority=spec.priority,
        seed=spec.seed,
        fresh=spec.fresh,
        deadline=spec.deadline,
        strategy=spec.strategy,
        sampler=spec.sampler,
        winograd=spec.winograd,
        precision=spec.precision,
        within_s=spec.within_s,
        stop_at_ms=spec.stop_at_ms,
        on_end=spec.on_end,
    )


def _shapes(spec: JobSpec) -> tuple[dict[str, tuple[InputSpec, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of inputs, and the sizes of dimensions, all combinations of which are the job's."""
    if not spec.entries:
        return {item.name: (item,) for item in spec.inputs}, {}
    inputs: dict[str, dict[InputSpec, None]] = {}
    dims: dict[str, dict[int, None]] = {}
    for entry in spec.entries:
        for item in entry.asked.inputs:
            inputs.setdefault(item.name, {})[item] = None
        for name, size in entry.asked.dims.items():
            dims.setdefault(name, {})[size] = None
    return {name: tuple(found) for name, found in inputs.items()}, {name: tuple(found) for name, found in dims.items()}
