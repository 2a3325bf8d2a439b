"""Reshapes sink below elementwise operators."""

from __future__ import annotations

from functools import partial

import pytest
from tvm import relax

from autotune.tvm_backend.graph.reshape import sink_reshapes

_OP = relax.op


@pytest.fixture
def sunk(rewritten):
    """The operators after sinking."""
    return partial(rewritten, sink_reshapes)


def test_an_activation_between_two_reshapes_needs_neither(sunk):
    def build(emit, x):
        flat = emit(_OP.reshape(x, (6, 4)))
        active = emit(_OP.multiply(flat, _OP.sigmoid(flat)))
        return _OP.exp(emit(_OP.reshape(active, (2, 3, 4))))

    assert "reshape" not in sunk(build, (2, 3, 4))


@pytest.mark.parametrize(
    ("constant", "left"),
    [((12,), ["add", "reshape"]), ((6, 1), ["reshape", "add"])],
    ids=["a vector follows", "one that spans other dimensions keeps the reshape"],
)
def test_a_constant_follows_into_the_shape_before_if_it_can(sunk, const, constant, left):
    assert sunk(lambda emit, x: _OP.add(emit(_OP.reshape(x, (6, 12))), const(*constant)), (6, 3, 4)) == left


def test_an_operand_of_the_same_shape_is_reshaped_with_the_data(sunk):
    def build(emit, x, y):
        return _OP.exp(emit(_OP.add(emit(_OP.reshape(x, (6, 12))), y)))

    assert sunk(build, (6, 3, 4), (6, 12)) == ["reshape", "add", "exp", "reshape"]


@pytest.mark.parametrize(
    ("shape", "reshaped", "operand"),
    [((6, 3, 4), (6, 12), (6, 1)), ((6, 3, 4), (6, 12), (1, 12)), ((3, 4), (1, 12), (6, 12))],
)
def test_an_operand_that_is_broadcast_or_broadcasts_keeps_the_reshape_before_it(shape, reshaped, operand, sunk):
    assert sunk(lambda emit, x, y: _OP.add(emit(_OP.reshape(x, reshaped)), y), shape, operand) == ["reshape", "add"]


@pytest.mark.parametrize(("before", "shape"), [((2, 6, 1, 4), (2, 6, 4)), ((6, 4), (1, 6, 1, 4))])
@pytest.mark.parametrize("constant", [(6, 1), (1, 4)])
def test_a_constant_follows_where_dimensions_of_one_come_or_go(before, shape, constant, sunk, const):
    given = constant if len(shape) == 3 else (constant[0], 1, constant[1])

    def build(emit, x):
        return _OP.reshape(emit(_OP.exp(emit(_OP.add(emit(_OP.reshape(x, shape)), const(*given))))), before)

    assert sunk(build, before) == ["add", "exp"]


def test_an_operator_that_is_not_elementwise_gets_the_shape_it_had(sunk):
    def build(emit, x):
        return _OP.sum(emit(_OP.exp(emit(_OP.reshape(x, (6, 4))))), axis=1)

    assert sunk(build, (2, 3, 4)) == ["exp", "reshape", "sum"]
