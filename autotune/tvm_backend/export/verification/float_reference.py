"""Verify a library of a quantised model by the same weights in float32, where its runtime rounds otherwise.

Rounding to integers is a choice at every value: two right runtimes are some steps apart, and neither is the truth. What
the model means without rounding is the better reference. A library is right if it is as near to that as the runtime.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.tvm_backend.export import inputs, runners
from autotune.tvm_backend.export.runners import Arrays
from autotune.tvm_backend.export.submitted import ExportJob, OnnxModel
from autotune.tvm_backend.export.verification import accuracy
from autotune.tvm_backend.export.verification.verify_model import Case, Nearness, Verified, library_outputs, specs_of

_WITHIN = 1.1  # times the runtime's distance
_CHANCE = 3.0  # standard deviations of the ratio of two such distances, which are taken from so many values
_LARGEST = 1.5  # times the runtime's largest error: a single wrong value hardly changes a root mean square
_MAX_DISTANCE = 0.05  # of a runtime that says something: another 5% would not show beside more
_VALUES = 4096  # of an output, that as many inputs are drawn for
_MAX_INPUTS = 8


@dataclass(frozen=True)
class FloatComparison:
    """How a library and the runtime of the model compare with the same weights in float32.

    Attributes:
        case: What the library was verified on.
        outputs: Its outputs.
        error: How far they are from those of the runtime.
        nearness: The distances of the output for which the library does worst.
        is_right: Whether the library is as near as the runtime.
    """

    export: ExportJob
    case: Case
    outputs: Arrays
    nearness: Nearness
    is_right: bool

    def verified(self) -> Verified:
        """Return what was verified."""
        error = accuracy.largest_error(self.outputs, self.case.expected, self.case.inputs.probabilities)
        return Verified(self.case, error, 0.0, specs_of(self.export, self.case, self.outputs), nearness=self.nearness)

    def text(self) -> str:
        """Return what is added to the line that refuses the library."""
        return (
            f"; of the same weights in float32 it is {self.nearness.ours:.2g}, and the runtime"
            f" {self.nearness.runtime:.2g} (root mean square)"
        )


def compare(export: ExportJob, case: Case, library: Path) -> FloatComparison | None:
    """Compare a library with the same weights in float32, at one set of shapes.

    Args:
        export: The job.
        case: What it is verified on.
        library: The library.

    Returns:
        How near it is; None for a model that rounds nothing, or has no such form.
    """
    model = export.models[export.spec.all_entries.index(case.entry)]
    if not isinstance(model, OnnxModel):
        return None
    cases = [case, *_more(export, model, case)]
    exact = list(_exact(model, [item.inputs.arrays for item in cases], export.request.threads))
    if not exact:
        return None
    ways = list(zip(*(_ways(model, item.inputs.arrays, export.request.threads) for item in cases), strict=True))
    ours = [library_outputs(export, item, library) for item in cases]
    return FloatComparison(export, case, ours[0], *judge(ours, ways, exact, export.request.tolerance))


def in_float32(export: ExportJob, case: Case) -> Case:
    """Return a case with the outputs of the same weights in float32, if the model rounds and has such a form."""
    model = export.models[export.spec.all_entries.index(case.entry)]
    if not isinstance(model, OnnxModel):
        return case
    (exact,) = list(_exact(model, [case.inputs.arrays], export.request.threads)) or [case.expected]
    return replace(case, expected=exact)


def decides(model: OnnxModel, arrays: Arrays, threads: int) -> bool:
    """Return whether the runtime of a model is near enough to the same weights in float32 for these to decide."""
    exact = list(_exact(model, [arrays], threads))
    if not exact:
        return False
    ways = _ways(model, arrays, threads)
    return all(distance <= _MAX_DISTANCE for way in ways for distance in accuracy.distances([way], exact))


def _exact(model: OnnxModel, several: Sequence[Arrays], threads: int) -> Iterator[Arrays]:
    """Yield what the weights compute in float32 of several inputs; nothing where they have no such form."""
    graph = model.in_floats()
    if graph is None:
        return
    try:
        session = runners.onnx_session(graph.SerializeToString(), threads, plain=True)
    except Exception:  # it has a type that the rules do not expect; the exceptions have no other common class
        return
    for arrays in several:
        yield runners.onnx_runner(session, model.inputs, arrays)()


def _ways(model: OnnxModel, arrays: Arrays, threads: int) -> list[Arrays]:
    """Return what the runtime computes, with its optimisations and without."""
    return [outputs for plain in (False, True) for outputs in model.outputs([arrays], threads, plain=plain)]


def judge(
    ours: Sequence[Arrays], ways: Sequence[Sequence[Arrays]], exact: Sequence[Arrays], tolerance: float
) -> tuple[Nearness, bool]:
    """Return how near a library is to what is exact, and whether that is as near as its runtime.

    Args:
        ours: Its outputs, for each of several inputs.
        ways: Those of the runtime, in each of the ways in which it can compute them.
        exact: Those of the same weights in float32.
        tolerance: The largest error of a library that needs no comparison with the runtime.
    """
    own = accuracy.distances(ours, exact)
    runtime = [max(of_ways) for of_ways in zip(*(accuracy.distances(way, exact) for way in ways), strict=True)]
    worst = max(range(len(own)), key=lambda index: own[index])
    nearness = Nearness(own[worst], runtime[worst])
    if _largest(ours, exact) <= tolerance:
        return nearness, True
    sizes = [sum(array.size for array in arrays) for arrays in zip(*ours, strict=True)]
    near = all(map(_is_near, own, runtime, sizes))
    return nearness, near and _largest(ours, exact) <= _LARGEST * max(_largest(way, exact) for way in ways)


def _is_near(own: float, runtime: float, size: int) -> bool:
    return runtime <= _MAX_DISTANCE and own <= runtime * (_WITHIN + _CHANCE / math.sqrt(max(size, 1)))


def _largest(outputs: Sequence[Arrays], exact: Sequence[Arrays]) -> float:
    return max(accuracy.largest_error(own, right) for own, right in zip(outputs, exact, strict=True))


def _more(export: ExportJob, model: OnnxModel, case: Case) -> Iterator[Case]:
    """Draw more inputs for a model of which one run says little; none where the inputs are the user's."""
    fewest = min((array.size for array in case.expected), default=0)
    if export.request.inputs or not fewest:
        return
    for turn in range(1, min(_MAX_INPUTS, -(-_VALUES // fewest))):
        drawn = inputs.verification_inputs(model, case.entry.inputs, None, inputs.SEED + turn)
        (expected,) = model.outputs([drawn.arrays], export.request.threads)
        yield replace(case, inputs=drawn, expected=expected)
