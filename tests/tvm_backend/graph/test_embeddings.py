"""Products with one-hot encodings read rows, and known rows are sliced."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tvm import relax

from autotune.tvm_backend.graph.embeddings import read_rows, slice_rows

_OP = relax.op
DEPTH = 5
SHAPE = (2, 30)


@pytest.fixture
def read(rewritten):
    """The operators after the rewrite."""
    return partial(rewritten, read_rows)


def encoded(emit, x, numbers):
    """Indices from -2 to 8, of which those from 0 to 4 have a column, as a one-hot encoding."""
    scaled = emit(_OP.subtract(emit(_OP.multiply(x, relax.const(10.0))), relax.const(7.0)))
    indices = emit(_OP.reshape(emit(_OP.astype(emit(_OP.floor(scaled)), "int32")), (*SHAPE, 1)))
    return emit(_OP.astype(emit(_OP.equal(indices, relax.const(numbers))), "float32"))


def test_an_embedding_is_a_gather_and_indices_without_a_row_give_zeros(read, const):
    def build(emit, x):
        numbers = np.arange(DEPTH, dtype=np.int32).reshape(1, 1, DEPTH)
        return _OP.matmul(encoded(emit, x, numbers), const(DEPTH, 8))

    operators = read(build, SHAPE)
    assert operators[-1] == "take" and not {"equal", "matmul"} & set(operators)


@pytest.mark.parametrize(("dtype", "depth"), [("uint8", 256), ("int8", 128)])
def test_a_table_with_a_row_for_each_value_of_a_byte(read, const, dtype, depth):
    def build(emit, x):
        indices = emit(_OP.astype(emit(_OP.floor(emit(_OP.multiply(x, relax.const(80.0))))), dtype))
        column = emit(_OP.reshape(indices, (*SHAPE, 1)))
        equal = emit(_OP.equal(column, relax.const(np.arange(depth).astype(dtype))))
        return _OP.matmul(emit(_OP.astype(equal, "float32")), const(depth, 8))

    assert read(build, SHAPE)[-1] == "take"


def test_columns_in_another_order_stay_a_product(read, const):
    def build(emit, x):
        return _OP.matmul(encoded(emit, x, np.arange(DEPTH, dtype=np.int32)[::-1].copy()), const(DEPTH, 8))

    assert "matmul" in read(build, SHAPE)


def test_a_comparison_of_many_with_many_stays_a_product(read, const):
    def build(emit, x):
        whole = emit(_OP.astype(emit(_OP.floor(x)), "int32"))
        same = emit(_OP.astype(emit(_OP.equal(whole, relax.const(np.arange(DEPTH, dtype=np.int32)))), "float32"))
        return _OP.matmul(same, const(DEPTH, 8))

    assert "matmul" in read(build, (2, DEPTH))


@pytest.mark.parametrize(
    ("shape", "indices", "axis", "names"),
    [
        ((5,), np.int64(3), 0, ["strided_slice", "reshape"]),
        ((2, 3, 4), np.int64(1), 0, ["strided_slice", "reshape"]),
        ((2, 3, 4), np.array([2], np.int32), -1, ["strided_slice", "reshape"]),
        ((2, 3, 4), np.array([[1, 2]]), 1, ["strided_slice", "reshape"]),
        ((2, 3, 4), np.array([2, 1]), 1, ["take"]),
        ((2, 3, 4), np.array([0, 2]), 1, ["take"]),
    ],
)
def test_a_gather_of_constant_rows_in_order_is_a_slice(rewritten, shape, indices, axis, names):
    assert rewritten(slice_rows, lambda _, x: _OP.take(x, relax.const(indices), axis=axis), shape) == names
