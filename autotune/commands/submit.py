"""Submit a model: read it, extract its tasks and publish a job. The job appears in the queue as a whole."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import typer

from autotune import devices
from autotune.commands import submit_options as options
from autotune.commands.budget import parse_trials, trials_of
from autotune.commands.durations import parse_duration, parse_latency, parse_moment
from autotune.commands.job_names import check_name, free_name, next_id
from autotune.commands.model_inputs import parse_dims, parse_inputs, parse_values
from autotune.commands.model_reading import read_model
from autotune.commands.submission import Submission, check_numbers, strategy_and_sampler
from autotune.commands.terminal import Json, say, show, steps, tell, workspace_of
from autotune.config import Config, load_config
from autotune.errors import BadInput, disk_problem
from autotune.machine.hardware import cpu_model
from autotune.machine.platform import check_platform
from autotune.processes.messages import ImportAnswer
from autotune.stages import confirm
from autotune.storage import atomic, formats, locks
from autotune.storage.device_kind import PRIVATE, note
from autotune.storage.formats import Control, JobSpec, StageFile
from autotune.storage.job_files import make_folder
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.room import private_folder
from autotune.storage.tuning_log import TuningLog
from autotune.workers import oneshot


def preview(submission: Submission, config: Config, progress: oneshot.TellProgress) -> ImportAnswer:
    """Read the model and extract its tasks. Nothing is written.

    Args:
        submission: What to submit.
        config: The settings.
        progress: Called with a description of each step when it starts.

    Returns:
        The tasks and the inputs of the model.

    Raises:
        BadInput: The file, the target, an input, a number or the strategy is wrong.
    """
    check_platform()
    check_numbers(submission)
    strategy_and_sampler(submission, config)
    return read_model(submission, config, None, progress)


def submit(workspace: Workspace, config: Config, submission: Submission, progress: oneshot.TellProgress) -> JobSpec:
    """Read a model and publish a job for it, as a whole or not at all.

    Args:
        workspace: Where the job goes.
        config: The settings.
        submission: What to submit.
        progress: Called with a description of each step when it starts.

    Returns:
        The spec of the job.

    Raises:
        BadInput: The file, the target, an input, a number, the strategy or the name is wrong.
        DiskProblem: The workspace cannot be written to.
    """
    (spec,) = submit_each(workspace, config, [submission], progress)
    return spec


def submit_each(
    workspace: Workspace, config: Config, submissions: Sequence[Submission], progress: oneshot.TellProgress
) -> list[JobSpec]:
    """Publish a job for each of several submissions, once all of them are known to be right. See `submit`."""
    check_platform()
    for submission in submissions:
        _check(workspace, config, submission)
    with ExitStack() as stack:
        read = []
        for submission in submissions:
            incoming = stack.enter_context(_incoming(workspace))
            read.append((submission, read_model(submission, config, incoming.folder, progress), incoming))
        return [_publish(workspace, config, *each) for each in read]


def _check(workspace: Workspace, config: Config, submission: Submission) -> None:
    """Check what can be checked before the model is read, which takes a while."""
    check_numbers(submission)
    if submission.name:
        check_name(workspace, submission.name)
    strategy_and_sampler(submission, config)
    if submission.stop_at_ms is None:
        return
    if config.cluster.engine:
        raise BadInput("--stop-at times the whole model on this machine; leave [cluster] engine empty for it")
    if submission.target in config.boards:
        raise BadInput("--stop-at times the whole model on this machine, and not on boards; leave it out")


def publish(workspace: Workspace, config: Config, submission: Submission, imported: ImportAnswer) -> JobSpec:
    """Publish a job whose tasks are known, without reading a model. This is enough for a simulated device.

    Args:
        workspace: Where the job goes.
        config: The settings.
        submission: What to submit.
        imported: The tasks and the inputs of the model.

    Returns:
        The spec of the job.

    Raises:
        BadInput: The name is wrong.
        DiskProblem: The workspace cannot be written to.
    """
    with _incoming(workspace) as incoming:
        return _publish(workspace, config, submission, imported, incoming)


def _publish(
    workspace: Workspace, config: Config, submission: Submission, imported: ImportAnswer, incoming: JobPaths
) -> JobSpec:
    with locks.exclusive(workspace.queue_lock):
        id = next_id(workspace)
        name = _name(workspace, submission)
        spec = _spec(workspace, config, submission, imported, id, name)
        _write(workspace, incoming, spec)
        _note_device(workspace, config, spec)
        atomic.publish_folder(incoming.folder, workspace.job(id, spec.name).folder)
    return spec


def _name(workspace: Workspace, submission: Submission) -> str:
    if not submission.name:
        return free_name(workspace, Path(submission.origin or submission.model))
    check_name(workspace, submission.name)
    return submission.name


def _note_device(workspace: Workspace, config: Config, spec: JobSpec) -> None:
    """Write down, beside the tuning logs, on what kind of device their trials are measured."""
    kind = devices.of_job(spec, config).log_kind()
    if kind.key == spec.target_key:
        note(workspace, kind)


@contextmanager
def _incoming(workspace: Workspace) -> Iterator[JobPaths]:
    folder = workspace.incoming(f"{os.getpid()}-{uuid4().hex[:8]}")
    try:
        private_folder(workspace.jobs)
        private_folder(workspace.logs)
        folder.mkdir()
    except OSError as error:
        raise disk_problem("make", folder, error) from error
    try:
        yield JobPaths(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _spec(
    workspace: Workspace, config: Config, submission: Submission, imported: ImportAnswer, id: int, name: str
) -> JobSpec:
    key = imported.target_key + (f"{PRIVATE}{submission.private}" if submission.private else "")
    logs = [workspace.tuning_log(key, task.hash).records for task in imported.tasks]
    known = tuple(len(TuningLog(log).entries()) for log in logs)
    trials, automatic = trials_of(submission.trials, config.job.trials, imported.tasks, known, submission.fresh)
    strategy, sampler = strategy_and_sampler(submission, config)
    return JobSpec(
        id=id,
        name=name,
        model=submission.origin or str(submission.model),
        target=imported.target,
        target_key=key,
        inputs=imported.inputs,
        tasks=imported.tasks,
        trials=trials,
        trials_per_round=submission.trials_per_round or config.job.trials_per_round,
        priority=submission.priority,
        seed=submission.seed,
        fresh=submission.fresh,
        known_at_submit=known,
        submitted_at=time.time(),
        deadline=submission.deadline,
        strategy=strategy,
        sampler=sampler,
        model_size=imported.model_size,
        model_crc32=imported.model_crc32,
        winograd=submission.winograd,
        precision=submission.precision,
        machine=cpu_model(),
        values=dict(submission.values),
        within_s=submission.within_s,
        entries=imported.entries,
        automatic=automatic,
        stop_at_ms=submission.stop_at_ms,
        on_end=submission.on_end,
        board=submission.target if submission.target in config.boards else "",
    )


def _write(workspace: Workspace, incoming: JobPaths, spec: JobSpec) -> None:
    make_folder(incoming.stages)
    for task in spec.tunable:
        formats.write(incoming.stage(task, 0), StageFile(task, 0, "search"))
    if confirm.is_promised(workspace, incoming, spec):  # by what is known already
        formats.write(incoming.stage(spec.tunable[0], 0), StageFile(spec.tunable[0], 0, "confirm"))
    formats.write(incoming.control, Control())
    formats.write(incoming.spec, spec)
    if spec.on_end:  # which the daemon runs only if nobody else can have written it
        for path in (incoming.folder, incoming.spec):
            path.chmod(path.stat().st_mode & ~0o022)


def command(
    context: typer.Context,
    model: options.Model,
    target: options.Targets = None,
    name: options.Name = "",
    trials: options.Trials = "",
    trials_per_round: options.TrialsPerRound = 0,
    input: options.Inputs = None,
    dim: options.Dims = None,
    value: options.Values = None,
    priority: options.Priority = 0,
    seed: options.Seed = 0,
    fresh: options.Fresh = False,
    deadline: options.Deadline = "",
    within: options.Within = "",
    stop_at: options.StopAt = "",
    on_end: options.OnEnd = "",
    strategy: options.Strategy = "",
    sampler: options.Sampler = "",
    winograd: options.Winograd = True,
    precision: options.PrecisionOption = "fp32",
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    as_json: Json = False,
) -> None:
    """Read a model, extract its tuning tasks and put a job into the queue."""
    workspace = workspace_of(context)
    config = load_config(workspace.config)
    inputs, dims, values = parse_inputs(input or []), parse_dims(dim or []), parse_values(value or [])
    due = parse_moment("--deadline", deadline, time.time()) if deadline else None
    search = (priority, seed, fresh, due, strategy, sampler, winograd, precision)
    budget, ends = parse_trials(trials), (parse_duration(within), parse_latency(stop_at), on_end)
    targets = _targets(target or ["llvm"], name)
    requests = [
        Submission(model, target, name, budget, trials_per_round, inputs, *search, dims, values, "", *ends)
        for target in targets
    ]
    with steps(quiet) as step:
        if dry_run:
            found = [preview(request, config, step) for request in requests]
        else:
            specs = submit_each(workspace, config, requests, step)
    if dry_run:
        for each in found:
            _tell_tasks(each, as_json)
    else:
        for spec in specs:
            _tell_job(spec, quiet, as_json)


def _targets(given: Sequence[str], name: str) -> Sequence[str]:
    if twice := [target for target in given if given.count(target) > 1]:
        raise BadInput(f"--target {twice[0]} is given twice; give each target once")
    if name and len(given) > 1:
        raise BadInput("--name is for one job, and each --target is one; leave --name out, or submit one by one")
    return given


def _tell_tasks(found: ImportAnswer, as_json: bool) -> None:
    if as_json:
        tell(json.dumps(formats.to_json(found)))
    else:
        from autotune.commands import render

        show(render.preview(found))


def _tell_job(spec: JobSpec, quiet: bool, as_json: bool) -> None:
    if as_json:
        budget = {"trials": spec.trials, "automatic": spec.automatic}
        tell(json.dumps({"id": spec.id, "name": spec.name, "tasks": len(spec.tasks), **budget}))
        return
    tell(str(spec.id))
    if not quiet:
        shapes = f"{len(spec.entries)} sets of shapes, " if spec.entries else ""
        most = "at most " if spec.automatic else ""
        say(f"job {spec.id} ({spec.name}): {shapes}{len(spec.tunable)} tasks to tune, {most}{spec.trials} trials")
        if spec.trials < len(spec.tunable):
            say(f"warning: {spec.trials} trials do not reach all {len(spec.tunable)} tasks; give more --trials")
