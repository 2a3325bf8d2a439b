"""Operators on rows become kernels that go over the rows."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te

from autotune.tvm_backend.graph.permutations import sink_permutations
from autotune.tvm_backend.graph.row_operators import name_layer_norms, replace_row_operators
from autotune.tvm_backend.operators.bfloat16_images import CONVERT, PAIRS, elementwise_program, number, pairs_program
from autotune.tvm_backend.operators.rows import softmax

from ..relax_functions import function

_OP = relax.op
_FULL = (2, 3, 48)


@pytest.fixture
def replaced(rewritten):
    """The operators after the replacement, without the number of a kernel."""
    return lambda *build: [name.rstrip("0123456789") for name in rewritten(replace_row_operators, *build)]


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


@pytest.mark.parametrize(("shape", "axis"), (((4, 7), -1), ((2, 3, 7), 1), ((4, 48, 1), 1)))
def test_a_softmax_without_whole_vectors_stays(replaced, shape, axis):
    assert replaced(lambda _, x: _OP.nn.softmax(x, axis), shape) == ["nn.softmax"]


@pytest.mark.parametrize(("shape", "axis"), (((1, 16, 4, 20), 1), ((3, 5, 16), -2), ((5, 24), 0)))
def test_a_softmax_over_another_dimension_is_one_over_the_columns_of_matrices(target, shape, axis):
    module = replace_row_operators(function(lambda _, x: _OP.nn.softmax(x, axis), shape))
    assert [str(var.name_hint) for var in module.functions if str(var.name_hint) != "main"] == ["softmax_columns"]
    machine = relax.VirtualMachine(relax.build(module, target), tvm.cpu())
    data = np.random.default_rng(0).normal(0, 9, shape).astype(np.float32)
    data.flat[0] = 3e38
    grown = np.exp(data - data.max(axis, keepdims=True))
    result = machine["main"](tvm.runtime.tensor(data)).numpy()
    np.testing.assert_allclose(result, grown / grown.sum(axis, keepdims=True), rtol=1e-5, atol=1e-7)


def test_a_softmax_of_large_and_infinite_values(target):
    module = replace_row_operators(function(lambda _, x: _OP.nn.softmax(x, -1), (2, 16)))
    machine = relax.VirtualMachine(relax.build(module, target), tvm.cpu())
    data = np.full((2, 16), -np.inf, np.float32)
    data[0, :2] = 3e38
    data[1, 5] = -200.0
    rows = machine["main"](tvm.runtime.tensor(data)).numpy()
    np.testing.assert_array_equal(rows, [[0.5, 0.5] + [0.0] * 14, [0.0] * 5 + [1.0] + [0.0] * 10])


def converted(emit, x):
    """Rows in bfloat16, as `packing/` converts them."""
    shape = tuple(map(int, x.ty.shape))
    data = te.placeholder(shape, name="data")
    program = elementwise_program([data], shape, lambda *at: number(data, *at), "uint16")
    return called(emit, program, CONVERT, x, shape)


def packed(emit, x):
    """Matrices as weights in bfloat16, as `packing/` packs them."""
    batch, inner, columns = map(int, x.ty.shape)
    shape = (batch, columns // 16, inner // 2, 32)
    return called(emit, pairs_program(batch, inner, columns), PAIRS, x, shape)


def called(emit, program, name, x, shape):
    function = relax.BlockBuilder.current().add_func(program, name)
    return emit(relax.call_tir(function, [x], out_ty=relax.TensorType(shape, "uint16")))


@pytest.mark.parametrize("columns", (48, 60))
def test_a_conversion_is_computed_with_a_softmax(replaced, columns):
    def build(emit, x):
        flat = emit(_OP.reshape(emit(_OP.nn.softmax(x, -1)), (1, 6, columns)))
        return converted(emit, flat)

    assert replaced(build, (2, 3, columns)) == ["softmax_rows", "reshape"]


def test_a_conversion_is_computed_with_a_layer_normalisation(replaced, const):
    def build(emit, x):
        return converted(emit, emit(_OP.nn.layer_norm(x, const(48), const(48), [-1], 1e-5)))

    assert replaced(build, _FULL) == ["layer_norm_rows"]


@pytest.mark.parametrize("axes", ((0, 2, 1, 3), (0, 2, 3, 1)))
def test_a_conversion_is_computed_with_a_permutation(replaced, axes):
    assert replaced(lambda emit, x: converted(emit, emit(_OP.permute_dims(x, axes))), (1, 16, 3, 32)) == [
        "permuted_rows"
    ]


@pytest.mark.parametrize(("axes", "matrices"), (((0, 2, 1, 3), (3, 16, 32)), ((0, 2, 3, 1), (3, 32, 16))))
def test_matrices_are_packed_as_they_are_permuted(replaced, axes, matrices):
    def build(emit, x):
        return packed(emit, emit(_OP.reshape(emit(_OP.permute_dims(x, axes)), matrices)))

    assert replaced(build, (1, 16, 3, 32)) == ["permuted_rows"]


def test_other_matrices_are_packed_after_a_permutation(replaced):
    def build(emit, x):
        return packed(emit, emit(_OP.reshape(emit(_OP.permute_dims(x, (0, 2, 1, 3))), (3, 32, 16))))

    assert replaced(build, (1, 16, 3, 32)) == ["permute_dims", "reshape", PAIRS]


def test_what_something_else_reads_is_converted_apart(replaced):
    def build(emit, x):
        rows = emit(_OP.nn.softmax(x, -1))
        half = emit(_OP.astype(converted(emit, rows), "float32"))
        return _OP.add(half, rows)

    assert replaced(build, _FULL) == ["softmax_rows", CONVERT, "astype", "add"]


@pytest.mark.parametrize(("axes", "name"), (((0, 2, 3, 1), "permuted_rows"), ((0, 2, 1, 3), "permute_dims")))
def test_between_products_rows_and_elements_are_exchanged_by_a_kernel(replaced, const, axes, name):
    def build(emit, x, y):
        heads = emit(_OP.reshape(emit(_OP.matmul(x, y)), (1, 16, 3, 32)))
        turned = emit(_OP.permute_dims(heads, axes))
        return _OP.matmul(turned, const(int(turned.ty.shape[-1]), 8))

    assert replaced(build, (1, 16, 16), (1, 16, 96)) == ["matmul", "reshape", name, "matmul"]


def test_an_exchange_that_is_fused_to_its_reader_stays(replaced):
    def build(emit, x, y):
        turned = emit(_OP.permute_dims(emit(_OP.matmul(x, y)), (0, 2, 1)))
        return _OP.exp(turned)

    assert replaced(build, (1, 16, 16), (1, 16, 32)) == ["matmul", "permute_dims", "exp"]
