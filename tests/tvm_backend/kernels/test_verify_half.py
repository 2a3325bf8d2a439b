"""A kernel that reads halves may compute in them; one of floats may not."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tvm

from autotune.errors import WrongResult
from autotune.tvm_backend.kernels.verify import Reference, Verifier


@pytest.mark.parametrize(
    ("dtype", "verdict"),
    [
        ("float16", contextlib.nullcontext()),
        ("float32", pytest.raises(WrongResult, match="relative error 0.005, allowed 0.0001")),
    ],
)
def test_the_tolerance_is_that_of_the_coarsest_argument(dtype, verdict):
    expected = np.linspace(0, 1, 8, dtype="float32")
    verifier = Verifier(Reference(((dtype, (8,)), ("float32", (8,))), {1: expected}), tvm.cpu())
    with verdict:
        verifier.check(lambda _, output: output.copyfrom(expected + 5e-3))
