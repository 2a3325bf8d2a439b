"""Products with constant matrices read them packed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tvm import relax

from autotune.tvm_backend.graph.reshape import sink_reshapes
from autotune.tvm_backend.operators.packed_product import pack_columns
from autotune.tvm_backend.packing.matrices import pack_products

_OP = relax.op


@pytest.fixture
def packed(rewritten):
    """The operators after packing, with reshapes where `prepare` leaves them."""
    return partial(rewritten, lambda module: sink_reshapes(pack_products(module)))


@pytest.mark.parametrize("shape", ((1, 24), (2, 3, 24)))
def test_a_bias_and_an_activation_work_on_the_packed_result(packed, const, shape):
    def build(emit, x):
        return _OP.nn.relu(emit(_OP.add(emit(_OP.matmul(x, const(24, 32))), const(32))))

    assert packed(build, shape) == ["packed_matmul", "add", "nn.relu", "reshape"]


def test_a_residual_is_added_to_the_packed_result(packed, const):
    def build(emit, x):
        return _OP.add(emit(_OP.matmul(x, const(32, 32))), x)

    assert packed(build, (5, 32)) == ["packed_matmul", "reshape", "add", "reshape"]


def test_columns_that_fill_a_vector_are_packed_in_those_and_few_others_stay_plain(packed, const):
    assert packed(lambda _, x: _OP.matmul(x, const(24, 40)), (5, 24)) == ["packed_matmul", "reshape"]
    assert packed(lambda _, x: _OP.matmul(x, const(24, 33)), (5, 24)) == ["matmul"]
    assert packed(lambda _, x: _OP.matmul(x, const(24, 5)), (9, 24)) == ["matmul"]


@pytest.mark.parametrize(("rows", "columns"), ((5, 129), (5, 257), (9, 33), (9, 61)))
def test_many_columns_or_rows_are_filled_up_to_whole_vectors(packed, const, rows, columns):
    made = packed(lambda _, x: _OP.matmul(x, const(24, columns)), (rows, 24))
    assert made == ["packed_matmul", "reshape", "strided_slice"]


def test_column_n_is_in_chunk_and_lane_and_the_last_chunk_is_filled_with_zeros():
    packed = pack_columns(np.arange(3 * 33).reshape(3, 33), 16)
    assert packed.shape == (3, 3, 16)
    assert packed[1, 2, 5] == 2 * 33 + 16 + 5
    assert list(packed[2, :, 0]) == [32, 65, 98]
    assert not packed[2, :, 1:].any()


def test_a_product_of_two_inputs_stays_plain(packed):
    assert packed(lambda _, x, y: _OP.matmul(x, y), (5, 24), (24, 32)) == ["matmul"]


def test_a_matrix_of_two_products_is_packed_once(rewritten, const):
    matrix = const(32, 32)
    made = []

    def build(emit, x):
        return _OP.matmul(emit(_OP.matmul(x, matrix)), matrix)

    def pack(module):
        made.append(pack_products(module))
        return made[0]

    assert rewritten(pack, build, (5, 32)) == ["packed_matmul", "reshape", "packed_matmul", "reshape"]
    calls = [binding.value for block in made[0]["main"].body.blocks for binding in block.bindings]
    first, second = (call.args[1].fields[1] for call in calls if len(call.args) > 1 and hasattr(call.args[1], "fields"))
    assert first.same_as(second)
