"""Softmax and layer normalisation become kernels that go over the rows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.graph.permutations import sink_permutations
from autotune.tvm_backend.graph.row_operators import name_layer_norms, replace_row_operators
from autotune.tvm_backend.operators.rows import softmax

from ..relax_functions import function

_OP = relax.op
_FULL = (2, 3, 48)


@pytest.fixture
def replaced(rewritten):
    """The operators after the replacement."""
    return partial(rewritten, replace_row_operators)


def written_norm(emit, x, scale, offset, *, square="power", epsilon=1e-5):
    """A layer normalisation as exporters write it."""
    moved = emit(_OP.subtract(x, emit(_OP.mean(x, [-1], keepdims=True))))
    squared = emit(_OP.multiply(moved, moved) if square == "multiply" else _OP.power(moved, relax.const(2.0)))
    deviation = emit(_OP.add(emit(_OP.mean(squared, [-1], keepdims=True)), relax.const(epsilon)))
    normal = emit(_OP.divide(moved, emit(_OP.sqrt(deviation))))
    return emit(_OP.add(emit(_OP.multiply(normal, scale)), offset))


@pytest.mark.parametrize("shape", (_FULL, (4, 8), (3, 6625), (3, 60)))
def test_a_softmax_over_the_last_dimension(replaced, shape):
    assert replaced(lambda _, x: _OP.nn.softmax(x, -1), shape) == ["softmax_rows"]


@pytest.mark.parametrize(("lanes", "halves"), [(16, [8, 4, 2, 1]), (12, [6, 3]), (25, [])])
def test_the_lanes_of_a_sum_are_added_by_halves_and_not_one_after_another(lanes, halves):
    text = str(softmax((4, 3 * lanes), lanes))
    for name in ("largest", "total"):
        assert text.count(f'T.sblock("{name}_halved') == len(halves)
    assert all(f"T.vectorized({half})" in text for half in halves if half > 1)


@pytest.mark.parametrize("shape", (_FULL, (4, 8)))
def test_a_layer_normalisation(replaced, const, shape):
    def build(_, x):
        return _OP.nn.layer_norm(x, const(shape[-1]), const(shape[-1]), [-1], 1e-5)

    assert replaced(build, shape) == ["layer_norm_rows"]


@pytest.mark.parametrize("square", ("power", "multiply"))
def test_a_layer_normalisation_as_exporters_write_it(replaced, const, square):
    def build(emit, x):
        return written_norm(emit, x, const(48), const(48), square=square)

    assert replaced(build, _FULL) == ["layer_norm_rows"]


def test_a_written_layer_normalisation_between_permutations_is_one_operator(rewritten, const):
    def build(emit, x):
        last = emit(relax.op.permute_dims(x, (0, 2, 3, 1)))
        normal = emit(written_norm(emit, last, const(48), const(48)))
        return relax.op.permute_dims(normal, (0, 3, 1, 2))

    rewrite = lambda module: sink_permutations(name_layer_norms(module))  # noqa: E731
    assert rewritten(rewrite, build, (1, 48, 4, 5)) == ["permute_dims", "nn.layer_norm", "permute_dims"]


def test_a_formula_that_is_almost_one_stays(replaced, const):
    def build(emit, x, y):
        mean = emit(_OP.mean(y, [-1], keepdims=True))
        moved = emit(_OP.subtract(x, mean))
        deviation = emit(_OP.add(emit(_OP.mean(emit(_OP.multiply(moved, moved)), [-1], True)), relax.const(1e-5)))
        normal = emit(_OP.divide(moved, emit(_OP.sqrt(deviation))))
        return emit(_OP.add(emit(_OP.multiply(normal, const(48))), const(48)))

    assert "layer_norm_rows" not in replaced(build, _FULL, _FULL)


@pytest.mark.parametrize(("shape", "axis"), (((4, 7), -1), (_FULL, 1)))
def test_rows_that_are_no_whole_vectors_or_not_contiguous_stay(replaced, shape, axis):
    assert replaced(lambda _, x: _OP.nn.softmax(x, axis), shape) == ["nn.softmax"]


def test_a_softmax_of_large_and_infinite_values(target):
    module = replace_row_operators(function(lambda _, x: _OP.nn.softmax(x, -1), (2, 16)))
    machine = relax.VirtualMachine(relax.build(module, target), tvm.cpu())
    data = np.full((2, 16), -np.inf, np.float32)
    data[0, :2] = 3e38
    data[1, 5] = -200.0
    rows = machine["main"](tvm.runtime.tensor(data)).numpy()
    np.testing.assert_array_equal(rows, [[0.5, 0.5] + [0.0] * 14, [0.0] * 5 + [1.0] + [0.0] * 10])
