"""Trials that travel: export those of a workspace, and take in those of another workspace, host or version of TVM.

What another workspace has measured, even on the same kind of device, is a claim. It gets tuning logs of its own and
counts for nothing, but jobs with the same tasks try the best of its schedules first and train their cost model on it
(`stages/transfer_learning.py`).
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from autotune.commands import t4_file
from autotune.commands.terminal import say, show, tell, workspace_of
from autotune.devices import for_target
from autotune.errors import BadInput, InvalidData, StorageError, UnknownJob, disk_problem
from autotune.machine.gpus import cuda_devices
from autotune.machine.hardware import cpu_model
from autotune.regular_file import check_readable
from autotune.storage import device_kind
from autotune.storage.atomic import check_output
from autotune.storage.device_kind import DeviceKind, claimed, is_private, measured_on, target_keys
from autotune.storage.formats import SIMULATED, JobSpec, Trial, from_json
from autotune.storage.job_files import read_spec
from autotune.storage.paths import TaskLogPaths, Workspace
from autotune.storage.private_folders import private_folder
from autotune.storage.record_log import RecordLog
from autotune.storage.trials_file import LogTrials
from autotune.storage.trials_file import read as read_file
from autotune.storage.trials_file import write as write_file
from autotune.storage.tuning_log import FORMAT, TuningLog
from autotune.storage.untrusted_trials import check_log, check_trial
from autotune.tvm_backend.untrusted_traces import check_trace
from autotune.version import TESTED_TVM

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    help="List, export and import trials, to share them between workspaces and machines.",
    no_args_is_help=True,
    add_completion=False,
)


@dataclass(frozen=True)
class Taken:
    """What was taken in of one kind of device.

    Attributes:
        key: The kind of device, as the name of a folder.
        kind: What the key stands for; None where nobody knows.
        tasks: The number of tasks with trials.
        added: The number of trials that are new here.
        known: The number of trials whose candidates were known here already.
        damaged: The number of records that could not be used.
    """

    key: str
    kind: DeviceKind | None
    tasks: int = 0
    added: int = 0
    known: int = 0
    damaged: int = 0

    def __add__(self, other: Taken) -> Taken:
        return replace(
            self,
            tasks=self.tasks + other.tasks,
            added=self.added + other.added,
            known=self.known + other.known,
            damaged=self.damaged + other.damaged,
        )


def collect(workspace: Workspace, tasks: set[tuple[str, str]] | None = None) -> Iterator[LogTrials]:
    """Yield the trials of a workspace, each with where it was measured, one tuning log at a time.

    What simulated devices and the points of sweeps measured stays where it is.

    Args:
        workspace: Where to read.
        tasks: Kinds of device with hashes of tasks; None means all.

    Raises:
        StorageError: A tuning log cannot be read.
    """
    for key in target_keys(workspace):
        if not is_private(key) and not key.startswith(SIMULATED):
            device = measured_on(key)
            kind = _kind(workspace, key)
            for paths in workspace.tuning_logs(key):
                if (tasks is None or (device, paths.records.stem) in tasks) and _is_sound(device, kind, paths):
                    yield _of_log(workspace, device, kind, paths)


def _is_sound(key: str, kind: DeviceKind | None, paths: TaskLogPaths) -> bool:
    try:
        check_log(key, paths.records.stem, kind)
    except InvalidData as error:
        say(f"{paths.records.parent} is left out: {error}")
        return False
    return True


def _of_log(workspace: Workspace, key: str, kind: DeviceKind | None, paths: TaskLogPaths) -> LogTrials:
    records = RecordLog(paths.records, *FORMAT).read()
    trials: dict[str, Trial] = {}
    damaged = 0
    for record in records:
        try:
            trial = from_json(Trial, record)
            check_trial(trial, check_trace)
            trials.setdefault(trial.hash, _with_origin(workspace, trial))
        except InvalidData:
            damaged += 1
    return LogTrials(key, paths.records.stem, kind, list(trials.values()), damaged)


def _with_origin(workspace: Workspace, trial: Trial) -> Trial:
    """Say of which workspace and host the job was that measured a trial."""
    if trial.imported:
        return trial
    return replace(trial, job=f"{socket.gethostname()}:{workspace.root.absolute()}/jobs/{trial.job}")


def _kind(workspace: Workspace, key: str) -> DeviceKind | None:
    """Return what a folder of tuning logs stands for, from its file or from a job of this machine that has it."""
    if (written := device_kind.read(workspace, key)) is not None:
        return written
    for job in workspace.job_list():
        try:
            spec = read_spec(job)
        except StorageError:
            continue
        device = measured_on(key)
        if spec.target_key == device:
            return next((kind for kind in for_target(spec.target).log_kinds() if kind.key == device), None)
    return None


def take_in(workspace: Workspace, logs: Iterable[LogTrials]) -> list[Taken]:
    """Add trials to the claims of a workspace, without those whose candidates were measured here or are there already.

    Raises:
        DiskProblem: A log could not be written. What was added before stays.
    """
    taken: dict[str, Taken] = {}
    last: tuple[str, str] | None = None
    for log in logs:
        if (log.key, log.task) != last:
            claims = _Claims(workspace, log.key, log.task)
        added = claims.add(log.trials)
        if log.kind is not None and added:
            device_kind.note(workspace, log.kind, claimed(log.key))
        new_task = bool(log.trials) and (log.key, log.task) != last  # a long log comes in pieces
        one = Taken(log.key, log.kind, int(new_task), added, len(log.trials) - added, log.damaged)
        taken[log.key] = taken.get(log.key, Taken(log.key, log.kind)) + one
        last = (log.key, log.task)
    return list(taken.values())


class _Claims:
    """What other workspaces claim to have measured of one task on one kind of device."""

    def __init__(self, workspace: Workspace, key: str, task: str) -> None:
        measured = TuningLog(workspace.tuning_log(key, task).records).entries()
        self._measured = {entry.hash for entry in measured}
        self._log = TuningLog(workspace.tuning_log(claimed(key), task).records)

    def add(self, trials: Sequence[Trial]) -> int:
        """Return how many trials were new here, and have been added."""
        new = [trial for trial in trials if trial.hash not in self._measured]
        return len(self._log.add(new)) if new else 0


def import_file(workspace: Workspace, path: Path) -> list[Taken]:
    """Take in a file of trials, all of it or, if anything in it is damaged, nothing.

    Raises:
        BadInput: There is no such file, or it cannot be read.
        DamagedFile, NewerFormat: The file cannot be used; nothing was added.
        DiskProblem: A file could not be read or written.
    """
    check_readable(path)
    for _ in read_file(path, check_trace):  # all of it is checked before any of it is used
        pass
    _prepare(workspace)
    return take_in(workspace, read_file(path, check_trace))


def merge(workspace: Workspace, other: Workspace) -> list[Taken]:
    """Take in the trials of another workspace, which may be in use.

    Raises:
        BadInput: It is no other workspace.
        StorageError: A log cannot be read or written.
    """
    if not os.access(other.logs / "tuning", os.R_OK | os.X_OK):
        raise BadInput(f"{other.root} is no workspace with tuning logs that can be read")
    if other.root.resolve() == workspace.root.resolve():
        raise BadInput(f"{other.root} is this workspace itself")
    _prepare(workspace)
    return take_in(workspace, collect(other))


def _prepare(workspace: Workspace) -> None:
    try:
        private_folder(workspace.logs)
    except OSError as error:
        raise disk_problem("make", workspace.logs, error) from error


def same_machine(kind: DeviceKind | None) -> bool:
    """Return whether jobs of this machine share the trials of a kind of device, if they have its target."""
    if kind is None or kind.versions != TESTED_TVM:
        return False
    return kind.device in {cpu_model(), *(gpu.name for gpu in cuda_devices())}


def _described(key: str, kind: DeviceKind | None) -> str:
    if kind is None or not kind.device:  # nobody knows, or it does not exist
        return key
    threads = f", {kind.target['num-cores']} threads" if "num-cores" in kind.target else ""
    return f"{kind.device}{threads}, TVM {kind.versions.get('apache-tvm', '?')}"


def _say(origin: object, taken: list[Taken]) -> None:
    if not any(one.tasks for one in taken):
        say(f"{origin} holds no trials")
    for one in taken:
        damaged = f", {one.damaged} damaged records left out" if one.damaged else ""
        where = _described(one.key, one.kind)
        counts = f"{one.added} trials of {one.tasks} tasks added, {one.known} known{damaged}"
        tell(f"{counts}: {where}; they count once they are timed here")
        if one.kind is not None and (warning := other_machine(one.kind)):
            say(f"{where}: {warning}")


def other_machine(kind: DeviceKind) -> str:
    """Say in what a machine with the CPU of this one differs from it; empty where it does not, or nothing is known."""
    here = for_target(kind.target).log_kind().machine if same_machine(kind) else {}
    names = [name for name, value in here.items() if kind.machine.get(name, value) != value]
    if not names:
        return ""
    theirs, ours = (", ".join(_amount(name, machine[name]) for name in names) for machine in (kind.machine, here))
    return f"measured with {theirs}, and this machine has {ours}: other schedules may be the best ones here"


def _amount(name: str, value: int) -> str:
    return f"{value} CPUs" if name == "cpus" else f"{value / 2**20:g} MiB of {name}"


def _table(workspace: Workspace) -> Table:
    from autotune.commands import render

    rows = []
    for key in sorted(set(map(measured_on, target_keys(workspace)))):
        kind = _kind(workspace, key) or device_kind.read(workspace, claimed(key))
        measured = _counts(workspace, key)
        imported = _counts(workspace, claimed(key))
        where = key if is_private(key) else _described(key, kind)
        counts = (len({*measured, *imported}), sum((measured + imported).values()), imported.total())
        rows.append((where, *map(str, counts), "yes" if same_machine(kind) else "no"))
    return render.table(
        ("MEASURED ON", "TASKS", "TRIALS", "IMPORTED", "THIS MACHINE"), rows, ("TASKS", "TRIALS", "IMPORTED")
    )


def _counts(workspace: Workspace, key: str) -> Counter[str]:
    """Return how many trials each task has in a folder of tuning logs."""
    logs = {paths.records.stem: TuningLog(paths.records) for paths in workspace.tuning_logs(key)}
    return Counter({task: len(log.entries()) for task, log in logs.items()})


@app.command("list")
def list_(context: typer.Context) -> None:
    """List how many trials the workspace has, by kind of device."""
    show(_table(workspace_of(context)))


@app.command("export")
def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, such as trials.gz.")],
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB...]", help="Export only the tasks of these jobs.")
    ] = None,
    format: Annotated[
        Literal["trials", "t4"], typer.Option(help="`trials`, or the results of one job for other tools: `t4`.")
    ] = "trials",
) -> None:
    """Write trials to a file that `import` reads elsewhere."""
    workspace = workspace_of(context)
    check_output(file)
    specs = _specs(workspace, jobs or [])
    if format == "t4":
        if len(specs) != 1:
            raise BadInput("--format t4 writes the results of one job; name one")
        tell(f"wrote {t4_file.write(workspace, specs[0], file)} trials to {file}")
        return
    tasks = {(spec.target_key, task.hash) for spec in specs for task in spec.tasks} if jobs else None
    logs = [log for log in collect(workspace, tasks) if log.trials]
    if not logs:
        raise UnknownJob("there are no trials to export")
    write_file(file, logs)
    tell(f"wrote {sum(len(log.trials) for log in logs)} trials of {len(logs)} tasks to {file}")


def _specs(workspace: Workspace, jobs: Sequence[str]) -> list[JobSpec]:
    from autotune.commands.jobs import select

    return [read_spec(paths) for paths in select(workspace, jobs)]


@app.command("import")
def import_(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files that `export` wrote.")],
) -> None:
    """Import the trials in files. A damaged file is refused as a whole."""
    workspace = workspace_of(context)
    for file in files:
        _say(file, import_file(workspace, file))


@app.command("merge")
def merge_(
    context: typer.Context,
    workspaces: Annotated[list[Path], typer.Argument(metavar="WORKSPACE...", help="Other workspaces.")],
) -> None:
    """Import the trials of other workspaces, even while their daemons run."""
    workspace = workspace_of(context)
    for folder in workspaces:
        _say(folder, merge(workspace, Workspace(folder)))
