"""Read a model for `submit`: check what can be checked at once, and let a process with TVM do the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

from autotune.commands.submit.words import shape_bindings
from autotune.config import Config
from autotune.daemon import capacity
from autotune.errors import BadInput, BadTarget, ModelError, StageTimeout
from autotune.machine.gpus import KIND
from autotune.network_plan.plan import NOTHING, read
from autotune.options import AUTO, Activations, AskedPrecision, TuningOptions
from autotune.processes.messages import ImportAnswer, ImportRequest
from autotune.regular_file import check_readable
from autotune.storage.formats import SIMULATED
from autotune.tvm_backend.target import target_kind
from autotune.workers import oneshot


def read_model(
    model: Path, options: TuningOptions, config: Config, folder: Path | None, progress: oneshot.TellProgress
) -> ImportAnswer:
    """Read a model and extract its tasks, in a process of its own.

    Args:
        model: The file.
        options: Its inputs and its target.
        folder: Where the tasks' programs and the model go; None to write nothing.
        progress: Called with a description of each step when it starts.

    Raises:
        BadInput: The file, the target, an input or the plan is wrong.
        StageTimeout: It took longer than `[submit] timeout_s`.
    """
    _check_file(model)
    board = config.boards.get(options.target)
    target = board.target if board else options.target
    _check_target(target, config)
    if options.precision == AUTO and options.calibrate:  # who calibrates a model wants it in int8
        options = replace(options, precision="int8")
    _check_precision(options.precision, target)
    if options.activations not in get_args(Activations):
        raise BadInput(f"activations are {options.activations!r}; give {' or '.join(get_args(Activations))}")
    _check_calibration(options)
    request = ImportRequest(
        model=str(model.absolute()),
        target=target,
        threads=capacity.threads(config),
        cpus=capacity.cpus(config).shared_cpus,
        lock_folder=str(config.machine.lock_folder),
        shapes=shape_bindings(options.inputs, options.dims),
        values=dict(options.values),
        winograd=options.winograd,
        precision=options.precision,
        folder=None if folder is None else str(folder.absolute()),
        board=board.key if board else "",
        calibrate=str(Path(options.calibrate).absolute()) if options.calibrate else "",
        max_drop=options.max_drop,
        accuracy=options.accuracy or "",
        plan=read(Path(options.plan)).decisions() if options.plan is not None else NOTHING,
        memory_mb=options.memory_mb,
        context=options.context_tokens,
        activations=options.activations,
    )
    limits = config.submit
    try:
        return oneshot.import_model(request, limits.timeout_s, progress, limits.memory_share)
    except StageTimeout as error:
        raise StageTimeout(
            f"reading {model} took more than {limits.timeout_s:g} s and was ended;"
            " [submit] timeout_s in autotune.toml allows more"
        ) from error


def _check_file(path: Path) -> None:
    """Find the most common mistakes before TVM is loaded, which takes two seconds."""
    if path.is_dir():
        raise ModelError(f"{path} is a folder; give the model's file in it")
    if path.exists() and not path.is_file():  # reading a FIFO would block, and a device may have no end
        raise ModelError(f"{path} is a pipe, a device or a socket; give the model's file itself")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise ModelError(f"{path} is empty")
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def _check_precision(precision: AskedPrecision, target: str) -> None:
    if precision not in get_args(AskedPrecision):
        raise BadInput(f"precision is {precision!r}; give {' or '.join(get_args(AskedPrecision))}")
    if precision in ("fp16", "tf32") and target_kind(target) != KIND:
        raise BadInput(f"--precision {precision} is for GPUs, whose tensor cores compute it; the target is {target}")


def _check_calibration(options: TuningOptions) -> None:
    if options.precision != "int8":
        if options.calibrate or options.accuracy or options.max_drop is not None:
            raise BadInput("--calibrate, --max-drop and --accuracy are for --precision int8")
        return
    if not options.calibrate:
        raise BadInput(
            "--precision int8 finds the ranges of values on your inputs: add --calibrate FILE.npz, an array for"
            " each input; a model that is quantised already needs no --precision"
        )
    check_readable(Path(options.calibrate))
    if options.values:
        raise BadInput("--value cannot be given with --precision int8: submit a model in which the input is a constant")


def _check_target(target: str, config: Config) -> None:
    """Check that a workspace with simulated CPUs gets no real job: it has nothing to measure it on."""
    try:
        kind = target_kind(target)
    except BadTarget as error:
        names = ", ".join(config.boards)
        raise BadTarget(f"{error}; or the name of boards: {names}" if names else str(error)) from None
    if kind != SIMULATED and config.machine.simulated_cpus:
        raise BadTarget(
            f"target {target!r}: the CPUs of this workspace are simulated ([machine] simulated_cpus),"
            " so it takes jobs for --target simulated only"
        )
