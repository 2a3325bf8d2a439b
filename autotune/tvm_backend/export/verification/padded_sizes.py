"""Find the open dimensions of which a library takes all sizes, because its results do not depend on padding.

A dimension that the file of the model leaves open, and of which several sizes were tuned, may have any size up to the
largest: inputs are padded with zeros, as masks expect it. That is right for one model and wrong for another. So the
library is run at sizes that were not tuned, and compared with the model as submitted, which runs without padding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, VerificationError
from autotune.tvm_backend.export.inputs import check_reference
from autotune.tvm_backend.export.padding import Dims, Shapes, cut, elements, padded, pick_entry, sizes_of
from autotune.tvm_backend.export.progress import Leases, NumberedSteps
from autotune.tvm_backend.export.runners import Arrays
from autotune.tvm_backend.export.submitted import ExportJob
from autotune.tvm_backend.export.verification import accuracy
from autotune.tvm_backend.export.verification.verify_model import Case, Verified, allowed_by, library_outputs

OutputDims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PaddedSizes:
    """What was found of the open dimensions of a library.

    Attributes:
        inputs: The dimensions of inputs, as in `OpenDimensions`.
        outputs: Those of outputs.
        sizes: The sizes that were tuned, in order, by the name of the dimension.
        verified: How many other sizes the library was right at.
        largest_relative_error: Its largest one there.
        refused: Why a dimension has to have one of the tuned sizes, by its name.
        counts: As in `OpenDimensions`. A library that puts out counts takes the tuned sizes alone.
        counted: For each of them how many it was on the first inputs that were verified, and how many it can be.
    """

    inputs: Dims = field(default_factory=dict)
    outputs: OutputDims = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    verified: int = 0
    largest_relative_error: float = 0.0
    refused: Mapping[str, str] = field(default_factory=dict)
    counts: tuple[str, ...] = ()
    counted: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def verify(export: ExportJob, library: Path, verified: Sequence[Verified], leases: Leases) -> dict[str, Any]:
    """Return the part of the report on padding, a `PaddedSizes`.

    Args:
        export: The job.
        library: Its library.
        verified: What was verified at each set of shapes.
        leases: Wait for what the library may use, and tell how far it is.
    """
    counted = export.models[0].counted()
    if counted.names:
        pairs = zip(counted.dims, verified[0].case.expected, strict=True)
        here = {dim: size for dims, array in pairs for dim, size in zip(dims, array.shape, strict=True) if dim}
        several = {name: (here[name], counted.largest[name]) for name in counted.names}
        return asdict(PaddedSizes(outputs=counted.dims, counts=counted.names, counted=several))
    if len(verified) < 2 or export.request.board is not None:
        return asdict(PaddedSizes())
    with leases.comparison():
        return asdict(_Padding(export, library, verified, leases.steps).found())


def tuned_sizes(entries: Mapping[str, Shapes], dims: Dims) -> dict[str, tuple[int, ...]]:
    """Return the tuned sizes, in order, of each open dimension that may have others, too.

    Args:
        entries: The shape of each input by its name, by the name of the entry.
        dims: The dimensions of the inputs that are open.
    """
    several: dict[str, set[int]] = {}
    for shapes in entries.values():
        for dim, size in sizes_of(shapes, dims).items():
            several.setdefault(dim, set()).add(size)
    return {dim: tuple(sorted(sizes)) for dim, sizes in several.items() if len(sizes) > 1 and untuned(sizes)}


def untuned(sizes: Collection[int]) -> list[int]:
    """Return the sizes to try of those that were not tuned: 1, the next after each tuned one, and one in the middle."""
    *smaller, largest = sorted(sizes)
    tried = {1, *(size + 1 for size in smaller), (smaller[-1] + largest) // 2}
    return sorted(tried - set(sizes))


@dataclass(frozen=True)
class _Run:
    """What a library computed of padded inputs, and the model as submitted of the same without padding.

    Attributes:
        sizes: The sizes of the dimensions that were padded.
        case: What the library was verified on at the sizes that they were padded to.
        ours: The outputs of the library at the padded sizes.
        expected: The outputs of the model.
    """

    sizes: Mapping[str, int]
    case: Case
    ours: Arrays
    expected: Arrays


class _Padding:
    """Tries whether the results of a library depend on padding."""

    def __init__(self, export: ExportJob, library: Path, verified: Sequence[Verified], steps: NumberedSteps) -> None:
        self._steps = steps
        self._export = export
        self._model = export.models[0]
        self._library = library
        self._cases = {item.case.entry.name: item.case for item in verified}
        self._entries: dict[str, Shapes] = {
            name: {item.name: item.shape for item in case.entry.inputs} for name, case in self._cases.items()
        }
        own = () if export.request.inputs else map(allowed_by, export.spec.own_error)
        self._limit = max([export.request.tolerance, *(item.own_error for item in verified), *own])
        first = next(iter(self._entries.values()))
        named = self._model.open_dims()
        self._dims = {name: dims for name, dims in named.items() if len(dims) == len(first.get(name, ()))}

    def found(self) -> PaddedSizes:
        """Try the open dimensions one by one, and those that passed together."""
        sizes = tuned_sizes(self._entries, self._dims)
        result = PaddedSizes(sizes=sizes)
        for dim in sizes:
            result = self._tried(result, [dim], [{dim: size} for size in untuned(sizes[dim])])
        accepted = [dim for dim in sizes if dim not in result.refused]
        if len(accepted) > 1:
            largest = sizes_of(max(self._entries.values(), key=elements), self._dims)
            less = {dim: max(1, largest[dim] - 1) for dim in accepted}
            result = self._tried(result, accepted, [less, dict.fromkeys(accepted, 1)])
            accepted = [dim for dim in accepted if dim not in result.refused]
        inputs = {name: dims for name, dims in self._only(accepted).items() if any(dims)}
        return replace(result, inputs=inputs, outputs=result.outputs if accepted else ())

    def _tried(self, before: PaddedSizes, dims: Sequence[str], several: Sequence[Mapping[str, int]]) -> PaddedSizes:
        """Return what was found before, and that these dimensions may be padded from these sizes, or why not."""
        outputs = before.outputs
        worst = before.largest_relative_error
        try:
            for run in self._runs(dims, several):
                if len(dims) == 1:
                    outputs = self._with_dim(outputs, run, dims[0])
                worst = max(worst, self._error(run, outputs))
        except AutotuneError as error:
            return replace(before, refused={**before.refused, **dict.fromkeys(dims, str(error))})
        verified = before.verified + len(several)
        return replace(before, outputs=outputs, verified=verified, largest_relative_error=worst)

    def _runs(self, dims: Sequence[str], several: Sequence[Mapping[str, int]]) -> Iterator[_Run]:
        """Run both at these sizes of some dimensions. Inputs are parts of those that the library was verified on."""
        inputs = self._only(dims)
        shapes = [self._shapes_at(sizes) for sizes in several]
        cases = [self._cases[pick_entry(self._entries, given, inputs)] for given in shapes]
        arrays = [_parts(case, given) for case, given in zip(cases, shapes, strict=True)]
        references = self._model.outputs(arrays, self._export.request.threads)
        for number, (sizes, case, given) in enumerate(zip(several, cases, arrays, strict=True)):
            self._steps.done(number, len(several))
            expected = self._reference(references, sizes)
            whole = [padded(array, item.shape) for array, item in zip(given, case.entry.inputs, strict=True)]
            ours = library_outputs(
                self._export, replace(case, inputs=replace(case.inputs, arrays=whole)), self._library
            )
            yield _Run(sizes, case, ours, expected)

    def _reference(self, outputs: Iterator[Arrays], sizes: Mapping[str, int]) -> Arrays:
        title = self._model.title
        try:
            return check_reference(partial(next, outputs), given=True, runtime=title)
        except VerificationError:
            raise VerificationError(f"{title} cannot run the model at {_written(sizes)}") from None

    def _error(self, run: _Run, dims: OutputDims) -> float:
        """Return the largest relative error of a run.

        Raises:
            VerificationError: It is not allowed.
        """
        outputs = [cut(output, names, run.sizes) for output, names in zip(run.ours, dims, strict=True)]
        where = f"at {_written(run.sizes)} the outputs of padded inputs"
        if [array.shape for array in outputs] != [array.shape for array in run.expected]:
            raise VerificationError(f"{where} have other shapes")
        error = accuracy.largest_error(outputs, run.expected, run.case.inputs.probabilities)
        if not error <= self._limit:
            raise VerificationError(f"{where} differ by {error:.2g}")
        return error

    def _with_dim(self, outputs: OutputDims, run: _Run, dim: str) -> OutputDims:
        """Add to the dimensions of outputs which of them is this one: its size is that of the inputs in both runs."""
        tuned = sizes_of(self._entries[run.case.entry.name], self._dims)[dim]
        before = outputs or tuple(("",) * array.ndim for array in run.expected)
        return tuple(
            tuple(
                dim if (whole, part) == (tuned, run.sizes[dim]) else name
                for name, whole, part in zip(names, tuned_output.shape, output.shape, strict=False)
            )
            for names, tuned_output, output in zip(before, run.case.expected, run.expected, strict=True)
        )

    def _shapes_at(self, sizes: Mapping[str, int]) -> Shapes:
        """Return shapes with these sizes, and in all else those of the smallest entry that is as large."""
        large = [
            shapes
            for shapes in self._entries.values()
            if all(sizes_of(shapes, self._dims)[dim] >= size for dim, size in sizes.items())
        ]
        return {
            name: tuple(map(sizes.get, self._dims.get(name, ("",) * len(shape)), shape))
            for name, shape in min(large, key=elements).items()
        }

    def _only(self, dims: Collection[str]) -> Dims:
        """The dimensions of inputs without those that are not among these."""
        return {name: tuple(dim if dim in dims else "" for dim in names) for name, names in self._dims.items()}


def _written(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in sizes.items())


def _parts(case: Case, shapes: Shapes) -> Arrays:
    """Return the inputs that a library was verified on, cut to these shapes."""
    pairs = zip(case.inputs.arrays, case.entry.inputs, strict=True)
    return [
        array if array.shape == shapes[item.name] else array[tuple(map(slice, shapes[item.name]))]
        for array, item in pairs
    ]
