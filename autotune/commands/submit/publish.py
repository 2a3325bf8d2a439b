"""Submit a model: read it, extract its tasks and publish a job. The job appears in the queue as a whole."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from uuid import uuid4

from autotune import devices, strategies
from autotune.commands.submit.model_reading import read_model
from autotune.config import Config
from autotune.errors import BadInput, DamagedFile, disk_problem
from autotune.machine.hardware import check_platform, cpu_model
from autotune.options import AUTO, TuningOptions, check_numbers
from autotune.planning.budget import TaskWork, automatic_trials
from autotune.processes.messages import ImportAnswer
from autotune.stages import compile
from autotune.storage import atomic, formats, locks
from autotune.storage.device_kind import PRIVATE, note
from autotune.storage.formats import INPUTS_VERSION, Control, JobSpec, LastId, StageFile, TaskSpec
from autotune.storage.job_files import make_folder, seal_of
from autotune.storage.model_digest import ModelDigest
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.private_folders import private_folder
from autotune.storage.quantisation import Quantisation
from autotune.storage.trees import discard_tree
from autotune.storage.tuning_log import TuningLog
from autotune.workers import oneshot

_RESERVED = re.compile(r"all|last|[0-9]+|[0-9]+-[0-9]+")
_SPACES = (".toml", ".json")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Submission:
    """A model, and the options to tune it with.

    A `private` name gives the job tuning logs that it shares with no job but those of the same name. `origin` is the
    file that the user knows the model by, where `model` is a copy of it. `quantisation` says what quantising the copy
    cost, if it is quantised already. `digest` is that of a program that was in no file before.
    """

    model: Path
    options: TuningOptions = field(default_factory=TuningOptions)
    private: str = ""
    origin: str = ""
    quantisation: Quantisation | None = None
    digest: ModelDigest | None = None

    @property
    def is_space(self) -> bool:
        """Whether it is a space of commands, and no model."""
        return self.model.suffix in _SPACES

    @property
    def reading(self) -> TuningOptions:
        """The options to read the model with: one that is quantised already is read as it is."""
        if self.quantisation is None:
            return self.options
        return replace(self.options, precision="fp32", calibrate=None, max_drop=None, accuracy=None)


def preview(submission: Submission, config: Config, progress: oneshot.TellProgress) -> ImportAnswer:
    """Read the model and extract its tasks. Nothing is written.

    Args:
        submission: What to submit.
        progress: Called with a description of each step when it starts.

    Returns:
        The tasks and the inputs of the model.

    Raises:
        BadInput: The file, the target, an input, a number or the strategy is wrong.
    """
    check_platform()
    check_numbers(submission.options)
    strategy_and_sampler(submission, config)
    return _read(submission, config, None, progress)


def _read(submission: Submission, config: Config, folder: Path | None, progress: oneshot.TellProgress) -> ImportAnswer:
    """Read what was submitted, a space or a model, and write its copy to the folder of the job, if there is one."""
    if submission.is_space:
        from autotune.commands.submit.space_reading import read_space_file  # here, for it loads NumPy

        return read_space_file(submission.model, submission.options, config, folder)
    return read_model(submission.model, submission.reading, config, folder, progress)


def submit(workspace: Workspace, config: Config, submission: Submission, progress: oneshot.TellProgress) -> JobSpec:
    """Read a model and publish a job for it, as a whole or not at all.

    Args:
        workspace: Where the job goes.
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
        folders = [stack.enter_context(_incoming(workspace)) for _ in submissions]
        answers = [
            _read(submission, config, incoming.folder, progress)
            for submission, incoming in zip(submissions, folders, strict=True)
        ]
        return [
            _publish(workspace, config, submission, imported, incoming)
            for submission, imported, incoming in zip(submissions, answers, folders, strict=True)
        ]


def _check(workspace: Workspace, config: Config, submission: Submission) -> None:
    """Check what can be checked before the model is read, which takes a while."""
    options = submission.options
    check_numbers(options)
    if options.name is not None:
        check_name(workspace, options.name)
    strategy_and_sampler(submission, config)
    if options.stop_at_ms is None:
        return
    if config.cluster.engine:
        raise BadInput("--stop-at times the whole model on this machine; leave [cluster] engine empty for it")
    if options.target in config.boards:
        raise BadInput("--stop-at times the whole model on this machine, and not on boards; leave it out")


def strategy_and_sampler(submission: Submission, config: Config) -> tuple[str, str]:
    """Return the strategy and the sampler of the job.

    Raises:
        BadInput: There is no such strategy or sampler.
    """
    options = submission.options
    strategy = config.search.strategy if options.strategy is None else options.strategy
    if strategy_falls_back(submission, config):
        strategy = strategies.DEFAULT
    try:
        own = strategies.default_sampler(strategy)
    except ValueError as error:
        raise BadInput(f"--strategy or [search] strategy: {error}") from error
    if options.sampler is None:
        return strategy, config.search.sampler or own
    if options.sampler not in strategies.SAMPLERS:
        raise BadInput(f"--sampler {options.sampler!r}: there are {', '.join(strategies.SAMPLERS)}")
    return strategy, options.sampler


def strategy_falls_back(submission: Submission, config: Config) -> bool:
    """Return whether the strategy of the settings is one for models, and the job is one of commands."""
    by_settings = submission.options.strategy is None and config.search.strategy in strategies.BACKEND_STRATEGIES
    return submission.is_space and by_settings


def publish(workspace: Workspace, config: Config, submission: Submission, imported: ImportAnswer) -> JobSpec:
    """Publish a job whose tasks are known, without reading a model. This is enough for a simulated device.

    Args:
        workspace: Where the job goes.
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
        _write(workspace, config, incoming, spec)
        _note_device(workspace, config, spec)
        atomic.publish_folder(incoming.folder, workspace.job(id, spec.name).folder)
    return spec


def _name(workspace: Workspace, submission: Submission) -> str:
    name = submission.options.name
    if name is None:
        return free_name(workspace, Path(submission.origin or submission.model))
    check_name(workspace, name)
    return name


def _note_device(workspace: Workspace, config: Config, spec: JobSpec) -> None:
    """Write down, beside the tuning logs, on what kind of device their trials are measured."""
    for kind in devices.of_job(spec, config).log_kinds():
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
        discard_tree(folder)


def _spec(
    workspace: Workspace, config: Config, submission: Submission, imported: ImportAnswer, id: int, name: str
) -> JobSpec:
    options = submission.options
    key = _logs_of(config, imported) + (f"{PRIVATE}{submission.private}" if submission.private else "")
    logs = [workspace.tuning_log(key, task.hash).records for task in imported.tasks]
    logged = tuple(len(TuningLog(log).entries()) for log in logs)
    trials, automatic = trials_of(options, config.job.trials, imported.tasks, logged)
    strategy, sampler = strategy_and_sampler(submission, config)
    filled_in = {
        "trials_per_round": options.trials_per_round or config.job.trials_per_round,
        "strategy": strategy,
        "sampler": sampler,
        "precision": "int8" if submission.quantisation else imported.precision,
    }
    return JobSpec(
        **(options.kept() | filled_in),
        id=id,
        name=name,
        model=submission.origin or str(submission.model),
        target=imported.target,
        target_key=key,
        inputs=imported.inputs,
        tasks=imported.tasks,
        trials=trials,
        known_at_submit=logged,
        submitted_at=time.time(),
        model_size=imported.model_size,
        model_crc32=imported.model_crc32,
        machine=cpu_model(),
        entries=imported.entries,
        automatic=automatic,
        board=options.target if options.target in config.boards else "",
        metric=imported.metric,
        quantisation=imported.quantisation or submission.quantisation,
        own_error=imported.own_error,
        verified_by=imported.verified_by,
        problem=imported.problem,
        state=imported.state,
        open_batches=imported.open_batches,
        digest=submission.digest or imported.digest,
        inputs_version=INPUTS_VERSION,
        seal=seal_of(options.on_end, imported.tasks),
    )


def _logs_of(config: Config, imported: ImportAnswer) -> str:
    """Return the key of a job's tuning logs: that of its device, and of where the model's constants are."""
    device = devices.for_target(imported.target)
    if not config.measure.in_context or device.log_kind().key != imported.target_key:
        return imported.target_key
    return device.kind_holding(imported.constant_bytes).key


def trials_of(
    options: TuningOptions, setting: int | Literal["auto"], tasks: Sequence[TaskSpec], logged: Sequence[int]
) -> tuple[int, bool]:
    """Return the budget of a job in trials, and whether it is automatic.

    Args:
        options: What the user asked for.
        setting: `[job] trials`.
        tasks: The tasks of the model.
        logged: How many trials of each task the workspace has.
    """
    trials = options.trials or setting
    if trials != AUTO:
        return trials, False
    works = [
        TaskWork(task.gflop * task.weight, 0 if options.fresh else count)
        for task, count in zip(tasks, logged, strict=True)
        if task.tunable
    ]
    return automatic_trials(works), True


def _write(workspace: Workspace, config: Config, incoming: JobPaths, spec: JobSpec) -> None:
    make_folder(incoming.stages)
    for task in spec.tunable:
        formats.write(incoming.stage(task, 0), StageFile(task, 0, "search"))
    if compile.is_due_at_once(workspace, incoming, spec, config):
        formats.write(incoming.stage(spec.tunable[0], 0), StageFile(spec.tunable[0], 0, "compile"))
    formats.write(incoming.control, Control())
    formats.write(incoming.spec, spec)
    if spec.on_end:  # which the daemon runs only if nobody else can have written to it since
        for path in (incoming.folder, incoming.spec):
            path.chmod(path.stat().st_mode & ~0o022)


def check_name(workspace: Workspace, name: str) -> None:
    """Check that a new job may have a name that the user gave.

    Raises:
        BadInput: It is no name for a job, or a job has it already.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(f"--name {name!r}: use up to 64 letters, digits, dots, dashes and underscores")
    if _RESERVED.fullmatch(name):
        raise BadInput(f"--name {name!r} would mean other jobs on a command line; give another")
    if name in _taken(workspace):
        raise BadInput(f"there is a job named {name!r} already; give another --name")


def free_name(workspace: Workspace, model: Path) -> str:
    """Return a name for a job that the user gave none: that of the model's file, with a number if a job has it."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", model.stem).strip("._-")[:48] or "model"
    name = f"model-{plain}" if _RESERVED.fullmatch(plain) else plain
    taken = _taken(workspace)
    candidates = (f"{name}-{number}" for number in itertools.count(2))
    return name if name not in taken else next(free for free in candidates if free not in taken)


def next_id(workspace: Workspace) -> int:
    """Return an id that no job of this workspace has ever had. The caller holds the lock of the queue."""
    try:
        last = formats.read(LastId, workspace.last_id).id
    except (FileNotFoundError, DamagedFile):
        last = 0  # the folders of the jobs have to be enough; the file is written again
    id = 1 + max([last, *(job.id for job in workspace.job_list())])
    formats.write(workspace.last_id, LastId(id))
    return id


def _taken(workspace: Workspace) -> set[str]:
    return {job.name for job in workspace.job_list()}
