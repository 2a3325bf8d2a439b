"""Verify a library of a whole model: choose inputs, run it and the model as submitted, and compare the outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import VerificationError
from autotune.options import InputSpec
from autotune.storage.formats import MAX_OWN_ERROR, Entry, JobSpec
from autotune.tvm_backend.export import inputs
from autotune.tvm_backend.export.inputs import VerificationInputs
from autotune.tvm_backend.export.padding import cut, split_counts
from autotune.tvm_backend.export.runners import Arrays
from autotune.tvm_backend.export.submitted import ExportJob, Submitted
from autotune.tvm_backend.export.timing.board_comparison import BoardComparison
from autotune.tvm_backend.export.timing.comparison import Runtime, RuntimeComparison
from autotune.tvm_backend.export.verification import accuracy
from autotune.tvm_backend.export.verification.own_error import own_error

_OURS = "library"
_ROUNDS_LESS = "; submit it with --no-winograd, which rounds less"
_MIN_OWN_ERROR = 1e-3  # below which a model has no steps, and its own error says nothing of other ways


@dataclass(frozen=True)
class Case:
    """What a library is verified on at one set of shapes.

    Attributes:
        entry: The set of shapes.
        inputs: The inputs.
        expected: The outputs that the model as submitted computes.
    """

    entry: Entry
    inputs: VerificationInputs
    expected: Arrays


@dataclass(frozen=True)
class UndecidedOutput:
    """An output that depends on a choice, which the inputs that it was verified on do not decide.

    Attributes:
        output: The name of the output.
        operators: The operators that choose.
        error: The largest relative error of what they choose by.
        same: How many rows of the output are where the model as submitted has them.
        rows: How many there are.
    """

    output: str
    operators: tuple[str, ...]
    error: float
    same: int
    rows: int


@dataclass(frozen=True)
class Nearness:
    """How far a quantised model is from the same weights in float32, by the root mean square of the errors.

    It is relative to the largest value of an output, and that of the output for which the library does worst.

    Attributes:
        ours: Of the library.
        runtime: Of the runtime of the model as submitted.
    """

    ours: float
    runtime: float


@dataclass(frozen=True)
class Verified:
    """A library that computes at one set of shapes what the model as submitted does.

    Attributes:
        case: What it was verified on.
        error: The largest relative error.
        own_error: Twice how far the runtime of the model is from itself, where that is what was allowed; else 0.
        outputs: The outputs of the model.
        choices: Outputs that are right, but differ from those of the model as submitted.
        nearness: What decided where the library differs from a runtime that rounds; None where it had not to.
    """

    case: Case
    error: float
    own_error: float
    outputs: tuple[InputSpec, ...]
    choices: tuple[UndecidedOutput, ...] = ()
    nearness: Nearness | None = None


def choose_inputs(export: ExportJob) -> list[Case]:
    """Choose the inputs of each entry, and run the model as submitted on them.

    Raises:
        BadInput: The user's inputs do not fit the model.
        VerificationError: The reference cannot be run on the inputs.
    """
    chosen = []
    files = inputs.files_of_entries([Path(file) for file in export.request.inputs], export.spec.all_entries)
    for model, entry in zip(export.models, export.spec.all_entries, strict=True):
        file = files.get(entry.name)
        drawn = inputs.verification_inputs(model, entry.inputs, file, inputs.SEED)
        run_once = model.runner(drawn.arrays, export.request.threads)
        with _about(export.spec, entry):
            expected = inputs.check_reference(run_once, given=file is not None, runtime=model.title)
        chosen.append(Case(entry, drawn, expected))
    return chosen


@contextlib.contextmanager
def _about(spec: JobSpec, entry: Entry) -> Iterator[None]:
    """Say in errors of the verification which set of shapes they are about, where there are several."""
    try:
        yield
    except VerificationError as error:
        if not spec.entries:
            raise
        raise VerificationError(f"{entry.name}: {error}") from None


def verify(export: ExportJob, case: Case, library: Path) -> Verified:
    """Verify the library of a job at one set of shapes.

    Args:
        export: The job.
        case: What it is verified on.
        library: The library.

    Raises:
        VerificationError: The outputs differ from those of the model as submitted.
    """
    ours = library_outputs(export, case, library)
    error, moves = _verify(export, case, ours)
    return Verified(case, error, moves, specs_of(export, case, ours))


def specs_of(export: ExportJob, case: Case, outputs: Arrays) -> tuple[InputSpec, ...]:
    """Return what the outputs of a job's model look like at one set of shapes, in their largest size."""
    names = export.models[0].output_names()
    counted = export.models[export.spec.all_entries.index(case.entry)].counted()
    dims = counted.dims or [("",) * array.ndim for array in outputs]
    shapes = [tuple(map(counted.largest.get, of, array.shape)) for of, array in zip(dims, outputs, strict=True)]
    described = zip(names, shapes, outputs, strict=True)
    return tuple(InputSpec(name, shape, str(array.dtype)) for name, shape, array in described)


def library_outputs(export: ExportJob, case: Case, library: Path, more: Sequence[str] = ()) -> Arrays:
    """Return what a library computes at one set of shapes, without the rows that are not there.

    Args:
        export: The job.
        case: The inputs.
        library: The library.
        more: Tensors that it puts out after the outputs of the model.
    """
    counted = export.models[export.spec.all_entries.index(case.entry)].counted(more)
    outputs, counts = split_counts(_outputs(export, case, library), counted.names)
    if not counts:
        return outputs
    return [cut(output, dims, counts) for output, dims in zip(outputs, counted.dims, strict=True)]


def _outputs(export: ExportJob, case: Case, library: Path) -> Arrays:
    """Return all that a library puts out at one set of shapes, in a process of its own or on the board."""
    request = export.request
    entry = case.entry
    arrays = case.inputs.arrays
    if request.board is not None:
        libraries = {_OURS: library}
        board = BoardComparison(request.board, libraries, entry.name, arrays, request.threads, request.turns)
        return board.outputs(_OURS)
    runtime = library_runtime(library, export.device.runtime, entry, export.models[0])
    with RuntimeComparison({_OURS: runtime}, entry.inputs, arrays, request.threads) as comparison:
        return comparison.outputs(_OURS)


def library_runtime(library: Path, device: str, entry: Entry, model: Submitted) -> Runtime:
    """Return what runs the function of a library for one set of shapes, on `cpu` or `cuda`."""
    return Runtime("library", library, device, function=entry.name, kept=model.kept)


def _verify(export: ExportJob, case: Case, ours: Arrays) -> tuple[float, float]:
    """Return the largest relative error at one set of shapes, and twice the own error where that is what allows it.

    The library and the runtime may each be as far from what is exact, on either side.
    """
    probabilities = case.inputs.probabilities
    tolerance = export.request.tolerance
    with _about(export.spec, case.entry):
        exact = accuracy.largest_error(ours, case.expected, probabilities) <= tolerance
        own = 0.0 if exact else _own_error(export, case)
        allowance = allowed_by(own)
        title = export.models[0].title
        try:
            return accuracy.check(ours, case.expected, max(tolerance, allowance), probabilities, title), allowance
        except VerificationError as failure:
            raise VerificationError(f"{failure}{_advice(export, own, title)}") from None


def allowed_by(own: float) -> float:
    """Return the error that the own error of a model allows: 0 where that says nothing."""
    return 2 * own if _MIN_OWN_ERROR <= own <= MAX_OWN_ERROR else 0.0


def _advice(export: ExportJob, own: float, title: str) -> str:
    """What the user of a model that was not verified can do. `own` is the model's own error."""
    if own > MAX_OWN_ERROR:
        apart = f"{title} itself is up to {own:.2g} from itself on these inputs"
        return f"; {apart}: give others with --inputs, or raise [export] tolerance if that is good enough"
    return _ROUNDS_LESS if any(task.name.startswith("winograd") for task in export.spec.tasks) else ""


def _own_error(export: ExportJob, case: Case) -> float:
    """Return the own error of the model as submitted, which `submit` has measured on random inputs."""
    index = export.spec.all_entries.index(case.entry)
    if export.spec.own_error and not export.request.inputs:
        return export.spec.own_error[index]
    return own_error(export.models[index], case.inputs, case.expected, export.request.threads)
