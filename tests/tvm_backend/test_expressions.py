"""Constants are read without a copy and written with one, whatever their order in memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from autotune.tvm_backend.expressions import constant_of, values_of

NUMBERS = np.arange(12).reshape(3, 4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_a_constant_has_the_elements_of_an_array_of_any_order(dtype: str) -> None:
    constant = constant_of(NUMBERS.T.astype(dtype), dtype)
    assert str(constant.ty.dtype) == dtype
    assert np.array_equal(constant.value.numpy(), NUMBERS.T.astype(dtype))


def test_types_that_numpy_lacks_are_copied() -> None:
    constant = constant_of(NUMBERS.T.astype(ml_dtypes.bfloat16), "bfloat16")
    assert np.array_equal(values_of(constant).astype("float32"), NUMBERS.T)


def test_the_elements_of_a_constant_lie_where_it_has_them_and_cannot_be_changed() -> None:
    constant = relax.const(NUMBERS, "int64")
    one, other = values_of(constant), values_of(constant)
    assert np.shares_memory(one, other) and np.array_equal(one, NUMBERS)
    with pytest.raises(ValueError, match="read-only"):
        one[0, 0] = 1


def test_a_constant_without_elements_is_one() -> None:
    assert values_of(constant_of(np.zeros((0, 3), np.float32), "float32")).shape == (0, 3)
