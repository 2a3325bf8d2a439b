"""How far outputs are from the right ones."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.errors import VerificationError
from autotune.tvm_backend.export.verification.accuracy import check, largest_error

INF = np.inf
NAN = np.nan


@pytest.mark.parametrize("output", [[1, -INF, NAN], [1, NAN, INF], [1, INF, INF], [NAN, INF, NAN], [1, INF, 2]])
def test_an_infinity_or_nan_that_the_reference_lacks_is_an_error(output):
    assert largest_error([np.float32(output)], [np.float32([1, INF, NAN])]) == INF
    assert largest_error([np.float32([1, INF, NAN])], [np.float32([1, INF, NAN])]) == 0


def test_the_error_of_indices_is_the_share_that_is_not_the_right_one():
    """The index beside the right one is as wrong as any other."""
    right = np.array([30_000, 30_000, 7, 5])
    assert largest_error([np.array([30_000, 29_999, 7, 5])], [right]) == 0.25
    assert largest_error([np.array([0, 29_999, 7, 5])], [right]) == 0.5
    assert largest_error([right], [right]) == 0
    assert largest_error([np.zeros(0, np.int64)], [np.zeros(0, np.int64)]) == 0


@pytest.mark.parametrize(
    ("output", "named"),
    [(np.int32([[1, 2]]), "1x2 int32"), (np.float64([[1, 2]]), "1x2 float64"), (np.float32([1, 2]), "2 float32")],
)
def test_an_output_of_another_type_or_shape_is_wrong_and_named(output, named):
    right = np.float32([[1, 2]])
    assert largest_error([output], [right]) == INF
    with pytest.raises(VerificationError, match=f"output 1 of .* is {named}, where that of LiteRT is 1x2 float32"):
        check([right, output], [right, right], 1e-5, runtime="LiteRT")
