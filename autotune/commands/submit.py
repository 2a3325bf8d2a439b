"""Submit a model: read it, extract its tasks and publish a job. The job appears in the queue as a whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from autotune import strategies
from autotune.commands.durations import parse_deadline, parse_duration
from autotune.commands.model_inputs import parse_dims, parse_inputs, parse_values
from autotune.commands.terminal import Json, say, show, steps, tell, workspace_of
from autotune.config import Config, load_config
from autotune.daemon import capacity
from autotune.errors import BadInput, BadTarget, DamagedFile, ModelError, StageTimeout, disk_problem
from autotune.machine.hardware import cpu_model
from autotune.machine.platform import check_platform
from autotune.processes.messages import ImportAnswer, ImportRequest
from autotune.storage import atomic, formats, locks
from autotune.storage.device_kind import PRIVATE, note
from autotune.storage.formats import GRAPH_REVISION, SIMULATED, Control, InputSpec, JobSpec, StageFile
from autotune.storage.job_files import make_folder
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.room import private_folder
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.target import device_kind, target_kind
from autotune.workers import oneshot

_LAST_ID = ("autotune-last-id", 1)
_RESERVED = re.compile(r"^(all|last|\d+|\d+-\d+)$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")


@dataclass(frozen=True)
class Submission:
    """What the user asked for. Zero trials stand for the default of the workspace.

    A `private` name gives the job tuning logs that it shares with no job but those of the same name.
    """

    model: Path
    target: str = "llvm"
    name: str = ""
    trials: int = 0
    trials_per_round: int = 0
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    priority: int = 0
    seed: int = 0
    fresh: bool = False
    deadline: float | None = None
    strategy: str = ""
    sampler: str = ""
    winograd: bool = True
    dims: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    private: str = ""
    within_s: float | None = None


def preview(submission: Submission, config: Config, progress: oneshot.TellProgress) -> ImportAnswer:
    """Read the model and extract its tasks. Nothing is written.

    Args:
        submission: What to submit.
        config: The settings.
        progress: Called with a description of each step when it starts.

    Returns:
        The tasks and the inputs of the model.

    Raises:
        BadInput: The file, the target, an input or the strategy is wrong.
    """
    check_platform()
    _search(submission, config)
    return _import(submission, config, None, progress)


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
        BadInput: The file, the target, an input, the strategy or the name is wrong.
        DiskProblem: The workspace cannot be written to.
    """
    check_platform()
    name = _name(submission)
    _search(submission, config)
    _check_free(workspace, name if submission.name else "")
    with _incoming(workspace) as incoming:
        imported = _import(submission, config, incoming.folder, progress)
        return _publish(workspace, config, submission, imported, incoming)


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
        id = _next_id(workspace)
        name = _free_name(workspace, _name(submission), submission)
        spec = _spec(workspace, config, submission, imported, id, name)
        _write(incoming, spec)
        _note_device(workspace, spec)
        atomic.publish_folder(incoming.folder, workspace.job(id, spec.name).folder)
    return spec


def _note_device(workspace: Workspace, spec: JobSpec) -> None:
    """Write down, beside the tuning logs, on what kind of device their trials are measured."""
    kind = device_kind(spec.target)
    if kind.key == spec.target_key:
        note(workspace, kind)


def _check_target(target: str, config: Config) -> None:
    """Check that a workspace with simulated CPUs gets no real job: it has nothing to measure it on."""
    if target_kind(target) != SIMULATED and config.machine.simulated_cpus:
        raise BadTarget(
            f"target {target!r}: the CPUs of this workspace are simulated ([machine] simulated_cpus),"
            " so it takes jobs for --target simulated only"
        )


def _name(submission: Submission) -> str:
    if submission.name and not _NAME.match(submission.name):
        raise BadInput(f"--name {submission.name!r}: use up to 64 letters, digits, dots, dashes and underscores")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", submission.model.stem).strip("._-")[:48] or "model"
    if submission.name and _RESERVED.match(submission.name):
        raise BadInput(f"--name {submission.name!r} means other jobs on a command line; give another")
    return submission.name or (f"model-{plain}" if _RESERVED.match(plain) else plain)


def _search(submission: Submission, config: Config) -> tuple[str, str]:
    """Return the strategy and the sampler of the job."""
    strategy = submission.strategy or config.search.strategy
    sampler = submission.sampler or config.search.sampler
    try:
        own = strategies.default_sampler(strategy)
    except ValueError as error:
        raise BadInput(f"--strategy or [search] strategy: {error}") from error
    if sampler not in ("", *strategies.SAMPLERS):
        raise BadInput(f"--sampler {sampler!r}: there are {', '.join(strategies.SAMPLERS)}")
    return strategy, sampler or own


def _names(workspace: Workspace) -> set[str]:
    return {job.folder.name.split("-", 1)[1] for job in workspace.job_list()}


def _check_free(workspace: Workspace, name: str) -> None:
    """Check that no job has a name that the user gave. Called before the model is read, which takes a while."""
    if name and name in _names(workspace):
        raise BadInput(f"there is a job named {name!r} already; give another --name")


def _free_name(workspace: Workspace, name: str, submission: Submission) -> str:
    """Return a name that no job has. A name that comes from the file gets a number if necessary."""
    taken = _names(workspace)
    if submission.name:
        _check_free(workspace, name)
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free


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


def _import(
    submission: Submission, config: Config, folder: Path | None, progress: oneshot.TellProgress
) -> ImportAnswer:
    _check_file(submission.model)
    _check_target(submission.target, config)
    request = ImportRequest(
        model=str(submission.model.absolute()),
        target=submission.target,
        threads=capacity.threads(config),
        cpus=capacity.cpus(config).shared_cpus,
        lock_folder=str(config.machine.lock_folder),
        inputs=tuple(submission.inputs.values()),
        dims=dict(submission.dims),
        values=dict(submission.values),
        winograd=submission.winograd,
        folder=None if folder is None else str(folder.absolute()),
    )
    limits = config.submit
    try:
        return oneshot.import_model(request, limits.timeout_s, progress, limits.memory_share)
    except StageTimeout as error:
        raise StageTimeout(
            f"reading {submission.model} took more than {limits.timeout_s:g} s and was ended;"
            " [submit] timeout_s in autotune.toml allows more"
        ) from error


def _check_file(path: Path) -> None:
    """Find the most common mistakes before TVM is loaded, which takes two seconds."""
    if path.is_dir():
        raise ModelError(f"{path} is a folder; give the ONNX file in it")
    if path.exists() and not path.is_file():  # reading a FIFO would block, and a device may have no end
        raise ModelError(f"{path} is a pipe, a device or a socket; give the ONNX file itself")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise ModelError(f"{path} is empty")
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def _next_id(workspace: Workspace) -> int:
    """Return a number that no job of this workspace has ever had. The caller holds the lock of the queue."""
    try:
        last = int(atomic.read_json(workspace.last_id, *_LAST_ID)["id"])
    except (FileNotFoundError, DamagedFile, KeyError, TypeError, ValueError):
        last = 0  # the folders of the jobs have to be enough; the file is written again
    id = 1 + max([last, *(job.id for job in workspace.job_list())])
    atomic.publish_json(workspace.last_id, *_LAST_ID, {"id": id})
    return id


def log_key(workspace: Workspace, imported: ImportAnswer) -> str:
    """The target's key; the one of an earlier version where this workspace has its logs under that alone."""
    keys = (imported.target_key, *imported.former_keys)
    return next((key for key in keys if workspace.tuning_logs(key)), imported.target_key)


def _spec(
    workspace: Workspace, config: Config, submission: Submission, imported: ImportAnswer, id: int, name: str
) -> JobSpec:
    key = log_key(workspace, imported) + (f"{PRIVATE}{submission.private}" if submission.private else "")
    logs = [workspace.tuning_log(key, task.hash).records for task in imported.tasks]
    strategy, sampler = _search(submission, config)
    return JobSpec(
        id=id,
        name=name,
        model=str(submission.model),
        target=imported.target,
        target_key=key,
        inputs=imported.inputs,
        tasks=imported.tasks,
        trials=submission.trials or config.job.trials,
        trials_per_round=submission.trials_per_round or config.job.trials_per_round,
        priority=submission.priority,
        seed=submission.seed,
        fresh=submission.fresh,
        known_at_submit=tuple(len(TuningLog(log).trials()) for log in logs),
        submitted_at=time.time(),
        deadline=submission.deadline,
        strategy=strategy,
        sampler=sampler,
        model_size=imported.model_size,
        model_crc32=imported.model_crc32,
        winograd=submission.winograd,
        graph_revision=GRAPH_REVISION,
        machine=cpu_model(),
        values=dict(submission.values),
        within_s=submission.within_s,
    )


def _write(incoming: JobPaths, spec: JobSpec) -> None:
    make_folder(incoming.stages)
    for task in spec.tunable:
        formats.write(incoming.stage(task, 0), StageFile(task, 0, "search"))
    formats.write(incoming.control, Control())
    formats.write(incoming.spec, spec)


def command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    target: Annotated[str, typer.Option(help="llvm (this CPU), cuda, simulated, or JSON.")] = "llvm",
    name: Annotated[str, typer.Option(help="Name of the job; by default that of the file.")] = "",
    trials: Annotated[int, typer.Option(min=0, help="How many trials to spend; 0: as in autotune.toml.")] = 0,
    trials_per_round: Annotated[int, typer.Option(min=0, help="Trials in a round; 0: as in autotune.toml.")] = 0,
    input: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1x3x224x224[:float32]", help="Shape of an input.")
    ] = None,
    dim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=128", help="Size of the dimensions with this name.")
    ] = None,
    value: Annotated[
        list[str] | None, typer.Option(metavar="NAME=16000", help="Value of an input that is a constant.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Jobs with a higher priority go first.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Count only trials that are measured from now on.")] = False,
    deadline: Annotated[
        str, typer.Option(metavar="HH:MM", help="When the job should have ended: 07:00, or 2026-03-01T07:00.")
    ] = "",
    within: Annotated[
        str, typer.Option(metavar="30m", help="How long its stages may run: 90s, 30m or 2h, without the time it waits.")
    ] = "",
    strategy: Annotated[str, typer.Option(help="Search strategy; by default as in autotune.toml.")] = "",
    sampler: Annotated[str, typer.Option(help="greedy or adaptive; by default that of the strategy.")] = "",
    winograd: Annotated[
        bool,
        typer.Option(
            help="Use Winograd's algorithm for 3x3 convolutions on CPUs if it should be faster; it is less exact."
        ),
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the tasks and write nothing.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the job's id.")] = False,
    as_json: Json = False,
) -> None:
    """Read a model, extract its tuning tasks and put a job into the queue."""
    from autotune.commands import render
    from autotune.storage.formats import to_json

    workspace = workspace_of(context)
    config = load_config(workspace.config)
    inputs, dims, values = parse_inputs(input or []), parse_dims(dim or []), parse_values(value or [])
    due = parse_deadline(deadline, time.time()) if deadline else None
    search = (priority, seed, fresh, due, strategy, sampler, winograd)
    within_s = parse_duration(within)
    request = Submission(
        model, target, name, trials, trials_per_round, inputs, *search, dims, values, within_s=within_s
    )
    with steps(quiet) as step:
        if dry_run:
            found = preview(request, config, step)
        else:
            spec = submit(workspace, config, request, step)
    if dry_run:
        tell(json.dumps(to_json(found))) if as_json else show(render.preview(found))
    elif as_json:
        tell(json.dumps({"id": spec.id, "name": spec.name, "tasks": len(spec.tasks), "trials": spec.trials}))
    else:
        _tell_job(spec, quiet)


def _tell_job(spec: JobSpec, quiet: bool) -> None:
    tell(str(spec.id))
    if not quiet:
        say(f"job {spec.id} ({spec.name}): {len(spec.tunable)} tasks to tune, {spec.trials} trials")
        if spec.trials < len(spec.tunable):
            say(f"warning: {spec.trials} trials do not reach all {len(spec.tunable)} tasks; give more --trials")
