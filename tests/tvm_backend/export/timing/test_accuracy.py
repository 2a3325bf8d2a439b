"""How much a model moves with the last bit of its inputs."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.errors import VerificationError
from autotune.tvm_backend.export.timing.accuracy import check, largest_error, sensitivity

X = np.linspace(1, 2, 33, dtype=np.float32)


def of(compute, *arrays):
    return sensitivity(lambda inputs: [compute(*inputs)], list(arrays), [compute(*arrays)])


def test_a_smooth_model_moves_by_a_rounding():
    assert 0 < of(np.exp, X) < 1e-6


def test_a_model_that_rounds_at_a_threshold_moves_by_a_step():
    """The input in the middle is at a threshold, and a step is a twentieth of the largest output."""
    assert of(lambda x: np.floor(x * 10) / 10, np.float32([1.0, 1.5, 2.0])) == pytest.approx(0.05, rel=1e-5)


def test_indices_stay():
    assert of(lambda index: X[index], np.arange(8)) == 0.0


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("found", [[1, -INF, NAN], [1, NAN, INF], [1, INF, INF], [NAN, INF, NAN], [1, INF, 2]])
def test_an_infinity_or_nan_that_the_reference_lacks_is_an_error(found):
    assert largest_error([np.float32(found)], [np.float32([1, INF, NAN])]) == INF
    assert largest_error([np.float32([1, INF, NAN])], [np.float32([1, INF, NAN])]) == 0


def test_the_index_beside_the_right_one_is_wrong():
    assert largest_error([np.array([30_000, 29_999])], [np.array([30_000, 30_000])]) == INF
    assert largest_error([np.array([30_000])], [np.array([30_000])]) == 0


@pytest.mark.parametrize(
    ("found", "named"),
    [(np.int32([[1, 2]]), "1x2 int32"), (np.float64([[1, 2]]), "1x2 float64"), (np.float32([1, 2]), "2 float32")],
)
def test_an_output_of_another_type_or_shape_is_wrong_and_named(found, named):
    right = np.float32([[1, 2]])
    assert largest_error([found], [right]) == INF
    with pytest.raises(VerificationError, match=f"output 1 of .* is {named}, where that of LiteRT is 1x2 float32"):
        check([right, found], [right, right], 1e-5, runtime="LiteRT")
