"""A kernel that reads halves may compute in them; one of floats may not."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.errors import WrongResult
from autotune.tvm_backend.kernels.verify import Reference, Verifier


class OnCpu:
    """A device that is not guarded, as a GPU is not."""

    def __str__(self) -> str:
        return "cuda:0"

    def sync(self) -> None:
        """Nothing runs."""


class Tensor:
    def __init__(self, array) -> None:
        self.array = array

    def numpy(self):
        return self.array


@pytest.mark.parametrize(("dtype", "fine"), [("float16", True), ("float32", False)])
def test_the_tolerance_is_that_of_the_coarsest_argument(dtype, fine, monkeypatch):
    expected = np.linspace(0, 1, 8, dtype="float32")
    reference = Reference(((dtype, (8,)), ("float32", (8,))), {1: expected})
    verifier = Verifier(reference, OnCpu())
    monkeypatch.setattr(verifier, "_tensor", lambda array: Tensor(array.copy()))

    def main(_, output):
        output.array[:] = expected + 5e-3

    if fine:
        verifier.check(main)
    else:
        with pytest.raises(WrongResult, match="relative error 0.005, allowed 0.0001"):
            verifier.check(main)
