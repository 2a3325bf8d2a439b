"""Verify a library whose outputs depend on a choice, such as the best 300 of many boxes, on values that nearly tie.

Two right runtimes may choose differently then. So a second library, of the same schedules, puts out what the choices
are made by as well. What it computes there is compared with the model as submitted, which then goes on from these very
values: where both choose by the same numbers, they have to come to the same outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import AutotuneError
from autotune.storage.formats import Trial
from autotune.tvm_backend.export import runners
from autotune.tvm_backend.export.compilation import JobModel
from autotune.tvm_backend.export.runners import Arrays
from autotune.tvm_backend.export.submitted import ExportJob, OnnxModel
from autotune.tvm_backend.export.verification import accuracy
from autotune.tvm_backend.export.verification.verify_model import (
    Case,
    UndecidedOutput,
    Verified,
    library_outputs,
    specs_of,
)
from autotune.tvm_backend.models.hints import onnx_hints
from autotune.tvm_backend.models.onnx.choices import choices_of, given, given_inputs, with_outputs
from autotune.tvm_backend.models.onnx.read import parse_file
from autotune.tvm_backend.models.onnx.snapshot import is_large
from autotune.tvm_backend.types import ModelProto


@dataclass(frozen=True)
class _Cut:
    """A model that is cut where it chooses.

    Attributes:
        submitted: The graph as submitted.
        operators: The operators that choose, by the name of the tensor that they choose by.
        probabilities: As in `accuracy.largest_error`, of its outputs and of these tensors after them.
    """

    submitted: ModelProto
    operators: Mapping[str, str]
    probabilities: Sequence[bool]


def verify(export: ExportJob, case: Case, library: Path, best: Mapping[str, Trial]) -> Verified | None:
    """Verify a library at one set of shapes, taking its choices as right if they are so for what it computed itself.

    Args:
        export: The job.
        case: What it is verified on.
        library: The library, whose outputs differ from those of the model.
        best: The trials that it was compiled with.

    Returns:
        What was verified; None if the outputs depend on no choice, or differ for another reason.
    """
    index = export.spec.all_entries.index(case.entry)
    cut = _cut(export, index)
    if cut is None:
        return None
    ours = library_outputs(export, case, library)
    second = library.with_name("choices.so")
    try:
        JobModel.with_outputs(export.paths, export.spec, index, list(cut.operators)).compile_tuned(
            best, second, kept=export.kept
        )
        computed = library_outputs(export, case, second, list(cut.operators))
        return _verified(export, case, cut, ours, computed)
    except (AutotuneError, ValueError, RuntimeError):  # of TVM and ONNX Runtime, too: the first failure says more
        return None
    finally:
        second.unlink(missing_ok=True)


def chooses(model: OnnxModel) -> bool:
    """Return whether a model has outputs that may depend on a choice at which it can be cut."""
    return _cut_of(model) is not None


def _cut(export: ExportJob, index: int) -> _Cut | None:
    model = export.models[index]
    if not isinstance(model, OnnxModel) or export.request.board is not None:
        return None
    return _cut_of(model)


def _cut_of(model: OnnxModel) -> _Cut | None:
    graph = model.graph()
    submitted = parse_file(model.file)
    if is_large(graph) or is_large(submitted):
        return None
    submitted_names = {name for node in submitted.graph.node for name in node.output}
    operators = {name: kind for name, kind in choices_of(graph).items() if name in submitted_names}
    if not operators:
        return None
    return _Cut(submitted, operators, onnx_hints(with_outputs(graph, list(operators))).probabilities)


def _verified(export: ExportJob, case: Case, cut: _Cut, ours: Arrays, computed: Arrays) -> Verified | None:
    """Compare what was computed up to the choices, and from there on."""
    count = len(ours)
    if any(own.tobytes() != other.tobytes() for own, other in zip(ours, computed, strict=False)):
        return None  # the second library computes something else, so it says nothing of the first
    values = dict(zip(cut.operators, computed[count:], strict=True))
    expected = _from(export, case, cut, values)
    tolerance = export.request.tolerance
    error = accuracy.largest_error(computed, expected, cut.probabilities)
    if not error <= tolerance:
        return None
    entering = accuracy.largest_error(computed[count:], expected[count:], cut.probabilities[count:])
    operators = tuple(sorted(set(cut.operators.values())))
    choices = [
        UndecidedOutput(name, operators, entering, *_same_rows(own, right, tolerance))
        for name, own, right in zip(export.models[0].output_names(), ours, case.expected, strict=True)
        if accuracy.largest_error([own], [right]) > tolerance
    ]
    return Verified(case, error, 0.0, specs_of(export, case, ours), tuple(choices))


def _from(export: ExportJob, case: Case, cut: _Cut, values: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Return what the model as submitted makes of these values, and what it computes itself in their place."""
    content = given(cut.submitted, values).SerializeToString()
    session = runners.onnx_session(content, export.request.threads)
    feed = runners.onnx_feed(session, case.entry.inputs, case.inputs.arrays, export.spec.values)
    return list(session.run(None, feed | given_inputs(values)))


def _same_rows(output: npt.NDArray[Any], reference: npt.NDArray[Any], tolerance: float) -> tuple[int, int]:
    """Return how many rows of an output are where the reference has them, and how many either has."""
    width = output.shape[-1] if output.ndim > 1 else 1
    rows = [array.reshape(array.size // width, width) for array in (output, reference)]
    same = [accuracy.largest_error([own], [right]) <= tolerance for own, right in zip(*rows, strict=False)]
    return int(np.sum(same)), max(map(len, rows))
