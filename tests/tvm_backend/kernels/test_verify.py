"""What a kernel may leave in its arguments."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from autotune.errors import WrongResult
from autotune.tvm_backend.kernels.verify import Reference, Verifier

INF = np.inf
NAN = np.nan
RIGHT = [1, INF, NAN]


@pytest.fixture
def check():
    """Checks a kernel that leaves these values, where `RIGHT` is right."""
    verifier = Verifier(Reference((("float32", (3,)),), {0: np.float32(RIGHT)}), tvm.cpu())
    return lambda values: verifier.check(lambda argument: argument.copyfrom(np.float32(values)))


@pytest.mark.parametrize("values", [[1, -INF, NAN], [1, NAN, INF], [1, INF, INF], [NAN, INF, NAN], [1, INF, 2]])
def test_an_infinity_or_nan_that_the_reference_lacks_is_wrong(check, values):
    check(RIGHT)
    with pytest.raises(WrongResult, match="infinities and NaNs"):
        check(values)
