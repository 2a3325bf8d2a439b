"""Export a job: compile its best schedules so far into a verified library."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune import devices
from autotune.commands import references
from autotune.commands.export import unchanged
from autotune.commands.export.export_options import (
    Again,
    ExportOptions,
    Frozen,
    Inputs,
    Quick,
    Retime,
    Source,
    Threads,
    Untuned,
)
from autotune.commands.export.request import request_of
from autotune.commands.export.summary import report_text
from autotune.commands.submit.words import number_or_auto
from autotune.commands.terminal import Json, OneJob, say, steps, tell, workspace_of
from autotune.config import Config, load_config
from autotune.daemon import capacity
from autotune.errors import BadInput, BadState, StorageError, disk_problem
from autotune.processes.messages import ExportRequest
from autotune.storage import export_lock, export_registry
from autotune.storage.atomic import make_folders
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import in_use, read_plan, read_spec
from autotune.storage.locks import sole_writer
from autotune.storage.model_digest import ModelDigest
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.compiler_digest import compiler_digest
from autotune.tvm_backend.export.writing.files import SOURCE, edited, foreign_files
from autotune.tvm_backend.untrusted_traces import check_trace
from autotune.workers import oneshot

_PLAIN = ExportOptions()
_UNCHANGED = "nothing has changed since the last export of the job: these are its files; --again makes new ones"


def export(
    workspace: Workspace,
    config: Config,
    paths: JobPaths,
    output: Path,
    progress: oneshot.TellProgress,
    options: ExportOptions = _PLAIN,
) -> dict[str, Any]:
    """Compile the best schedules of a job, verify the model, compare its latency, and write it to a folder.

    Of a job of commands the best values and all trials are written, see `autotune.command_jobs.best`.

    Args:
        workspace: Where the job is.
        config: The settings.
        output: The folder. It is made if it does not exist.
        progress: Called with a description of each step when it starts.
        options: What else is asked for.

    Returns:
        The report, as in `output/report.json`.

    Raises:
        VerificationError: The outputs differ from those of the model as submitted. Nothing was written.
        BadState: The job is for a simulated device, or the lock file is for another job.
        Busy: Another export writes to `output`.
        BoardProblem: The job is for boards, and none can be used now.
        MachineProblem: The job is for boards that autotune.toml does not have.
        BadInput: `output` is not a folder that can be written to, or it has the user's own files of the same names. Or
            inputs do not fit the model, source is asked for and the target is a GPU, options contradict each other, or
            there is no lock file to follow.
        DamagedFile: The lock file is no such file.
        ModelError: Source is asked for, and the model has something that cannot be written as source.
    """
    spec = read_spec(paths)
    if devices.kind_of(spec) is devices.CommandDevice:
        options.check_commands()
        return _export_commands(workspace, paths, spec, output)
    options.check(spec, capacity.threads(config))
    _check_exportable(paths, spec, config, options.source)
    _check_output(output, options.source)
    asked = request_of(workspace, config, paths, spec, output, options.inputs, retime=options.retime)
    request = options.apply(asked)
    with sole_writer(output), in_use(workspace, paths):
        if options.frozen:
            request = _frozen(request, paths, spec, progress)
            return oneshot.export_model(request, config.export.timeout_s, progress).report
        digest = unchanged.made_from(workspace, paths, spec, request)
        before = None if options.again or options.retime else unchanged.again(paths, digest, output)
        if before is not None:
            progress(_UNCHANGED)
            return before
        report = oneshot.export_model(request, config.export.timeout_s, progress).report
        with contextlib.suppress(StorageError, OSError):  # the library is written, which is what was asked for
            unchanged.remember(paths, digest, output)
            if not options.quick:
                references.remember(paths, report)
    return report


def _frozen(request: ExportRequest, paths: JobPaths, spec: JobSpec, progress: oneshot.TellProgress) -> ExportRequest:
    """Return the request for an export by the lock file in its folder, which has to be for the job."""
    folder = Path(request.output)
    lock = export_lock.read(folder, check_trace)
    export_lock.check(lock, spec, read_plan(paths), folder / export_lock.LOCK)
    if lock.compiler != compiler_digest():
        progress("the lock file was written by another compiler: the schedules are the same, and their code may differ")
    chosen = replace(request, threads=lock.threads, cuda_graph=lock.cuda_graph, contenders=1)
    return replace(chosen, quick=True, frozen=True)


def _export_commands(workspace: Workspace, paths: JobPaths, spec: JobSpec, output: Path) -> dict[str, Any]:
    from autotune.command_jobs import best  # here, for it loads NumPy

    with in_use(workspace, paths):
        return best.export(workspace, paths, spec, output)


def _check_drop(paths: JobPaths, spec: JobSpec) -> None:
    """Check that a quantised model answers as the model as submitted, as far as the user asked for it."""
    cost = spec.quantisation
    if cost is None or spec.max_drop is None or cost.within(spec.max_drop):
        return
    drop = f"{cost.drop:.1%} of the {cost.samples} calibration samples"
    if cost.score is not None:
        before = f"{cost.drop:.1%} less than the {cost.score_before:.4g} in float32"
        happened = f"scores {cost.score:.4g} by the command of --accuracy, {before}"
    elif cost.right is not None:
        happened = f"is less often right, by {drop}"
    else:
        happened = f"gives another top-1 answer than the model as submitted for {drop}"
    raise BadState(
        f"{paths.folder.name} in int8 {happened}; --max-drop allows {spec.max_drop:.1%}: submit it with more samples,"
        " or in another precision"
    )


def _check_exportable(paths: JobPaths, spec: JobSpec, config: Config, source: bool) -> None:
    """Check that a job can be exported, as source if that is asked for."""
    device = devices.kind_of(spec)
    if not device.exists:
        raise BadState(f"{paths.folder.name} was tuned for a device that does not exist: there is nothing to export")
    _check_drop(paths, spec)
    if source and spec.target_kind != "llvm":
        raise BadInput(f"--source is for CPUs; {paths.folder.name} was tuned for {spec.target_kind}")
    if source and spec.entries:
        raise BadInput(f"--source is for one set of shapes; {paths.folder.name} has {len(spec.entries)}")
    if spec.board:
        devices.of_job(spec, config).check_here(spec.target_key)


def _check_output(output: Path, source: bool) -> None:
    """Check that the folder can be written to and may be, before compiling for minutes."""
    if output.exists() and not output.is_dir():
        raise BadInput(f"--output {output} is a file; give a folder")
    try:
        make_folders(output)
        probe = output / ".tmp-probe"
        probe.touch()
        probe.unlink()
        foreign = foreign_files(output)
        changed = edited(output / SOURCE) if source else []
    except OSError as error:
        raise disk_problem("write to", output, error) from error
    if foreign:
        raise BadInput(
            f"--output {output} has a {' and a '.join(foreign)} that autotune did not make; give a new folder"
        )
    if changed:
        raise BadInput(f"{output / SOURCE / changed[0]} was edited or was not made by autotune; give a new folder")


def registrable(paths: JobPaths) -> ModelDigest:
    """Return the digest of the model of a job, by which programs find its library.

    Raises:
        BadInput: There is none, or they do not look for libraries of its kind.
    """
    spec = read_spec(paths)
    if not devices.kind_of(spec).is_local_cpu:
        raise BadInput(f"--register is for the CPUs of this machine; {paths.folder.name} was tuned for something else")
    if spec.digest is None:
        raise BadInput(f"{paths.folder.name} was submitted by an earlier version, without a digest; submit it again")
    return spec.digest


def command(
    context: typer.Context,
    job: OneJob,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write to.")],
    inputs: Inputs = None,
    source: Source = False,
    untuned: Untuned = False,
    quick: Quick = False,
    retime: Retime = False,
    again: Again = False,
    frozen: Frozen = False,
    threads: Threads = None,
    register: Annotated[
        bool, typer.Option("--register", help="Let programs find the library by their model: autotune.onnxruntime.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compile the best kernels so far into a library, verify it against the model as submitted, and time both.

    A model that `submit --calibrate` quantised is verified as quantised. For a job of commands, write the best values,
    scripts that build and run with them, and all trials. The steps go to standard error, each with the time since the
    start.
    """
    from autotune.commands.jobs import select_one

    workspace = workspace_of(context)
    config = load_config(workspace.config)
    paths = select_one(workspace, job)
    digest = registrable(paths) if register else None  # before the minutes that an export takes
    options = ExportOptions(
        inputs=tuple(inputs or ()),
        source=source,
        untuned=untuned,
        quick=quick,
        retime=retime,
        again=again,
        frozen=frozen,
        threads=None if threads is None else number_or_auto(threads, "--threads", "a number of threads"),
    )
    with steps(as_json, lines=True) as step:
        report = export(workspace, config, paths, output, step, options)
    tell(json.dumps(report) if as_json else report_text(report, str(output)))
    if digest is not None:
        export_registry.register(output, digest)
        say(f"registered {output} for {report['model']}")
