"""How far the runtime of a model is from itself: no other implementation of the model can be held to less.

It is about 1e-6 for most models. Where one rounds to integers, as dynamic quantisation does, a value at a threshold
takes another step with another order of additions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.export.inputs import VerificationInputs
from autotune.tvm_backend.export.runners import Arrays
from autotune.tvm_backend.export.submitted import Submitted
from autotune.tvm_backend.export.verification.accuracy import largest_error

_MOVES = 8  # how often the inputs are moved
_MAX_ERROR = 1.0  # that is told: a model whose outputs are infinite now and then is infinitely far from itself


def own_error(
    model: Submitted, drawn: VerificationInputs, expected: Arrays, threads: int, until: float | None = None
) -> float:
    """Return the largest relative change of a model's outputs in its own runtime, which no user would notice.

    It is run in other ways that are as right, such as without optimisations and on one thread. Then each float input
    moves to a neighbouring number, up or down, several times.

    Args:
        model: The model.
        drawn: Its inputs.
        expected: Their outputs.
        threads: How many threads it was run on.
        until: The moment of the monotonic clock after which the inputs are moved no more; None for all the times.
    """
    largest = 0.0
    for outputs in model.other_ways(drawn.arrays, threads):
        largest = max(largest, largest_error(outputs, expected, drawn.probabilities))
    for outputs in _moved(model, drawn.arrays, threads):
        largest = max(largest, largest_error(outputs, expected, drawn.probabilities))
        if until is not None and time.monotonic() > until:
            break
    return min(largest, _MAX_ERROR)


def _moved(model: Submitted, arrays: Arrays, threads: int) -> Iterator[Arrays]:
    """Yield the outputs for inputs that were moved, if any of them can be."""
    rng = np.random.default_rng(_MOVES)
    times = _MOVES if any(array.dtype.kind == "f" for array in arrays) else 0
    return model.outputs(([neighbour(array, rng) for array in arrays] for _ in range(times)), threads)


def neighbour(array: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return a float array with each number moved by one unit in the last place; others as they are."""
    if array.dtype.kind != "f":
        return array
    ends = np.where(rng.random(array.shape) < 0.5, -np.inf, np.inf).astype(array.dtype)
    return np.asarray(np.nextafter(array, ends))
