"""How far the outputs of a compiled model may be from those of the runtime of the model as submitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import VerificationError
from autotune.tvm_backend.export.runners import Arrays

# An error is relative to the largest value of its output, but at least to this value.
_MIN_SCALE = 1e-6
_MIN_PROBABILITY_SCALE = 1e-3


def largest_error(outputs: Arrays, reference: Arrays, probabilities: Sequence[bool] = ()) -> float:
    """Return the largest relative error of all outputs.

    An error is the absolute difference of two values, divided by the largest value of the output. It is infinite if the
    shapes or the types differ, or if other values are infinite or NaN. For 64-bit integers it is the share of those
    that differ: they are indices or counts, and the next one is as wrong as any other.

    Args:
        outputs: The outputs to check.
        reference: The right outputs.
        probabilities: For each output, whether it comes from a sigmoid or a softmax. ONNX Runtime computes small
            probabilities with an absolute error of 1e-7, so their errors are relative to at least 1e-3.
    """
    if len(outputs) != len(reference):
        return math.inf
    floors = [_MIN_PROBABILITY_SCALE if is_one else _MIN_SCALE for is_one in probabilities] or [_MIN_SCALE] * len(
        outputs
    )
    return max((_relative_error(*item) for item in zip(outputs, reference, floors, strict=True)), default=0.0)


def _relative_error(output: npt.NDArray[Any], reference: npt.NDArray[Any], floor: float) -> float:
    if _described(output) != _described(reference):
        return math.inf
    if reference.dtype == np.int64:
        return float(np.mean(output != reference)) if reference.size else 0.0
    wide = output.astype(np.float64)
    expected = reference.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(wide[~finite], expected[~finite], equal_nan=True) or not np.isfinite(wide[finite]).all():
        return math.inf
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(expected[finite]).max()), floor)
    return float(np.abs(wide[finite] - expected[finite]).max()) / scale


def _described(array: npt.NDArray[Any]) -> str:
    return " ".join(["x".join(map(str, array.shape)) or "scalar", str(array.dtype)])


def distances(outputs: Sequence[Arrays], reference: Sequence[Arrays]) -> list[float]:
    """Return for each output the root mean square of all its errors on several inputs, which chance hardly changes.

    It is relative to the largest value of the output, and for 64-bit integers the root of the share of those that
    differ. It is infinite where `largest_error` is.

    Args:
        outputs: The outputs to check, for each of the inputs.
        reference: The right outputs.
    """
    return [
        _distance(own, right)
        for own, right in zip(zip(*outputs, strict=True), zip(*reference, strict=True), strict=True)
    ]


def _distance(outputs: Sequence[npt.NDArray[Any]], reference: Sequence[npt.NDArray[Any]]) -> float:
    if not math.isfinite(largest_error(list(outputs), list(reference))):
        return math.inf
    own, right = (np.concatenate([array.ravel() for array in arrays]) for arrays in (outputs, reference))
    if right.dtype == np.int64:
        return float(np.sqrt(np.mean(own != right))) if right.size else 0.0
    wide = own.astype(np.float64)
    expected = right.astype(np.float64)
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(expected[finite]).max()), _MIN_SCALE)
    return float(np.sqrt(np.mean((wide[finite] - expected[finite]) ** 2))) / scale


def check(
    outputs: Arrays,
    reference: Arrays,
    tolerance: float,
    probabilities: Sequence[bool] = (),
    runtime: str = "ONNX Runtime",
) -> float:
    """Check that the largest relative error is within the tolerance.

    Args:
        outputs: The outputs to check.
        reference: The right outputs.
        tolerance: The largest allowed relative error.
        probabilities: As in `largest_error`.
        runtime: The name of what computed the right outputs.

    Returns:
        The largest relative error.

    Raises:
        VerificationError: It is above the tolerance. The message names it.
    """
    for number, (output, right) in enumerate(zip(outputs, reference, strict=False)):
        if (described := _described(output)) != (expected := _described(right)):
            raise VerificationError(
                f"output {number} of the compiled model is {described}, where that of {runtime} is {expected};"
                " nothing was exported"
            )
    error = largest_error(outputs, reference, probabilities)
    if not error <= tolerance:
        raise VerificationError(
            f"the compiled model differs from {runtime}: largest relative error {error:.3g},"
            f" allowed {tolerance:g}; nothing was exported"
        )
    return error
