"""Verify a whole model and time it: beside the runtime of the model as submitted, on a board, or alone."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.errors import VerificationError
from autotune.options import InputSpec
from autotune.storage.formats import MAX_OWN_ERROR, Entry, JobSpec
from autotune.tvm_backend.export import inputs
from autotune.tvm_backend.export.inputs import VerificationInputs
from autotune.tvm_backend.export.runners import Arrays
from autotune.tvm_backend.export.submitted import ExportJob, Submitted
from autotune.tvm_backend.export.timing.board_comparison import BoardComparison
from autotune.tvm_backend.export.timing.comparison import Runtime, RuntimeComparison, RuntimeTimes, ratios
from autotune.tvm_backend.export.timing.kernel_times import KernelTime
from autotune.tvm_backend.export.verification import accuracy
from autotune.tvm_backend.export.verification.own_error import own_error

# Keys of latencies in the report.
TUNED = "tuned_ms"
UNTUNED = "untuned_ms"
WITHOUT_GRAPH = "without_graph_ms"

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


@dataclass(frozen=True)
class Comparison:
    """The comparison of the tuned model with other runtimes, at one set of shapes.

    Attributes:
        verified: What was verified before.
        reference: The runtime of the model as submitted.
        times: The times of each runtime; None for one that ran elsewhere than the library: it cannot be compared. None
            of all if nothing was timed.
        kernels: The times of the kernels of the tuned model.
    """

    verified: Verified
    reference: str
    times: Mapping[str, RuntimeTimes | None] = field(default_factory=dict)
    kernels: Sequence[KernelTime] = ()

    def latencies(self) -> dict[str, Any]:
        """Return the part of the report that is about latencies, loading and memory."""
        if not self.times:
            return {"latency": {}, "reference": self.reference}
        return {**self._times(), **(self._reference() if f"{self.reference}_ms" in self.times else {})}

    def _times(self) -> dict[str, Any]:
        return {
            "latency": self._figures(lambda times: round(times.median_ms, 4)),
            "latency_spread": self._figures(lambda times: [round(value, 4) for value in times.spread_ms]),
            "reference": self.reference,
            "processes": len(self._tuned.turns_ms),
        }

    def _reference(self) -> dict[str, Any]:
        """Return what compares it with the model as submitted, and what is only known where that could be timed."""
        theirs = self.times[f"{self.reference}_ms"]
        shares = ratios(self._tuned, theirs) if theirs else None
        return {
            f"share_of_{self.reference}": shares
            and [round(value, 4) for value in (statistics.median(shares), min(shares), max(shares))],
            "load_ms": self._figures(lambda times: round(statistics.median(times.loads_ms), 2)),
            "memory_mb": self._figures(lambda times: round(statistics.median(times.memory) / 1e6, 2)),
        }

    @property
    def _tuned(self) -> RuntimeTimes:
        times = self.times[TUNED]
        assert times is not None
        return times

    def _figures(self, figure: Callable[[RuntimeTimes], Any]) -> dict[str, Any]:
        """Return a figure of each runtime; None where it was not timed."""
        return {name: figure(times) if times else None for name, times in self.times.items()}


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
    return Verified(case, error, moves, specs_of(export, ours))


def specs_of(export: ExportJob, outputs: Arrays) -> tuple[InputSpec, ...]:
    """Return what the outputs of a job's model look like."""
    names = export.models[0].output_names()
    return tuple(InputSpec(name, array.shape, str(array.dtype)) for name, array in zip(names, outputs, strict=True))


def library_outputs(export: ExportJob, case: Case, library: Path) -> Arrays:
    """Return what a library computes at one set of shapes, in a process of its own or on the board."""
    request = export.request
    entry = case.entry
    arrays = case.inputs.arrays
    if request.board is not None:
        libraries = {TUNED: library}
        board = BoardComparison(request.board, libraries, entry.name, arrays, request.threads, request.turns)
        return board.outputs(TUNED)
    runtime = library_runtime(library, export.device.runtime, entry, export.models[0])
    with RuntimeComparison({TUNED: runtime}, entry.inputs, arrays, request.threads) as comparison:
        return comparison.outputs(TUNED)


def library_runtime(library: Path, device: str, entry: Entry, model: Submitted) -> Runtime:
    """Return what runs the function of a library for one set of shapes, on `cpu` or `cuda`."""
    return Runtime("library", library, device, function=entry.name, kept=model.kept)


def times_by_threads(export: ExportJob, verified: Sequence[Verified], library: Path) -> dict[int, float]:
    """Time the library of a job for CPUs on 1, 2, 4 and more threads, up to those that it was compiled for.

    Returns:
        Milliseconds of a run by the number of threads, over all sets of shapes.
    """
    request = export.request
    counts = sorted({request.threads, *(2**power for power in range(request.threads.bit_length()))})
    sums = dict.fromkeys(counts, 0.0)
    for item in verified:
        entry = item.case.entry
        runtime = library_runtime(library, "cpu", entry, export.models[0])
        runtimes = {str(count): replace(runtime, threads=count) for count in counts}
        with RuntimeComparison(runtimes, entry.inputs, item.case.inputs.arrays, request.threads) as comparison:
            times = comparison.time(request.turns, longest_s=request.compare_s)
        sums = {count: sums[count] + times[str(count)].median_ms for count in counts}
    return sums


def compare(
    export: ExportJob, verified: Verified, libraries: Mapping[str, Path], reference_threads: int = 0
) -> Comparison:
    """Time the libraries of a job at one set of shapes, beside the model as submitted where that runs on the device.

    Args:
        export: The job.
        verified: What `verify` returned.
        libraries: The libraries by the key of their latency in the report.
        reference_threads: How many threads the model as submitted uses; 0 for as many as the libraries.
    """
    request = export.request
    model = export.models[0]
    entry = verified.case.entry
    arrays = verified.case.inputs.arrays
    if request.board is not None:
        board = BoardComparison(request.board, libraries, entry.name, arrays, request.threads, request.turns)
        return Comparison(verified, model.runtime, board.time())
    device = export.device.runtime
    # Where the model as submitted runs: its time beside that of a GPU would mean nothing.
    beside = device == "cpu" and model.is_usual
    reference = f"{model.runtime}_ms"
    runtimes = {
        **{name: library_runtime(file, device, entry, model) for name, file in libraries.items()},
        reference: Runtime(model.runtime, model.file, values=export.spec.values, threads=reference_threads),
    }
    with RuntimeComparison(runtimes, entry.inputs, arrays, request.threads) as comparison:
        apart = set[str]() if beside else {reference}
        pair = (TUNED, reference) if beside else None
        whose = WITHOUT_GRAPH if WITHOUT_GRAPH in libraries else TUNED
        # Nothing that is compared with needs to be known to a percent.
        longest_s = request.compare_s if model.is_usual else request.compare_s / len(export.models)
        timed = comparison.time(request.turns, pair=pair, without=apart, longest_s=longest_s, kernels_of=whose)
        times = {**dict.fromkeys(runtimes), **timed}
        return Comparison(verified, model.runtime, times, timed[whose].fastest_kernels())


def _verify(export: ExportJob, case: Case, ours: Arrays) -> tuple[float, float]:
    """Return the largest relative error at one set of shapes, and twice the own error where that is what allows it.

    The library and the runtime may each be as far from what is exact, on either side.
    """
    probabilities = case.inputs.probabilities
    tolerance = export.request.tolerance
    with _about(export.spec, case.entry):
        exact = accuracy.largest_error(ours, case.expected, probabilities) <= tolerance
        own = 0.0 if exact else _own_error(export, case)
        allowance = 2 * own if _MIN_OWN_ERROR <= own <= MAX_OWN_ERROR else 0.0
        title = export.models[0].title
        try:
            return accuracy.check(ours, case.expected, max(tolerance, allowance), probabilities, title), allowance
        except VerificationError as failure:
            raise VerificationError(f"{failure}{_advice(export, own, title)}") from None


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
