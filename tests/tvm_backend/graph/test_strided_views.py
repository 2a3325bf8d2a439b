"""What permutes, reshapes and cuts is a view of a tensor, as far as no elements are moved."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from autotune.tvm_backend.expressions import bindings_of
from autotune.tvm_backend.graph.strided_views import multiple_of, number_of, views

WIDE = (2, 8, 96)


def number(value, dtype="float32"):
    return relax.const(np.array(value), dtype)


def last_view(*steps):
    """The view of the input that the last of some steps is, and the input."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(WIDE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            expr = x
            for step in steps:
                expr = builder.emit(step(expr))
            output = builder.emit_output(expr)
        builder.emit_func_output(output)
    values = {item.var: item.value for item in bindings_of(builder.get()["main"])}
    *_, view = views(expr, values)
    return view, x


def to_heads(expr):
    return relax.op.reshape(expr, (2, 8, 3, 32))


def by_heads(expr):
    return relax.op.permute_dims(expr, (0, 2, 1, 3))


def cut(expr):
    return relax.op.strided_slice(expr, axes=[1], begin=[2], end=[3])


def part(expr):
    return relax.TupleGetItem(relax.op.split(expr, 3, axis=-1), 1)


def part_by_places(expr):
    return relax.TupleGetItem(relax.op.split(expr, [16, 80], axis=2), 2)


@pytest.mark.parametrize(
    ("steps", "strides", "offset"),
    [
        ([], (768, 96, 1), 0),
        ([to_heads], (768, 96, 32, 1), 0),
        ([to_heads, by_heads], (768, 32, 96, 1), 0),
        ([to_heads, by_heads, cut], (768, 32, 96, 1), 64),
        ([to_heads, by_heads, cut, lambda x: relax.op.squeeze(x, [1])], (768, 96, 1), 64),
        ([lambda x: relax.op.expand_dims(x, 0)], (1536, 768, 96, 1), 0),
        ([lambda x: relax.op.permute_dims(x)], (1, 96, 768), 0),
        ([lambda x: relax.op.astype(x, "float16")], (768, 96, 1), 0),
    ],
)
def test_a_view_has_the_strides_that_numpy_gives_it(steps, strides, offset):
    view, x = last_view(*steps)
    assert view.source.same_as(x)
    assert (view.strides, view.offset, view.factor) == (strides, offset, 1.0)


@pytest.mark.parametrize(("take", "offset"), [(part, 32), (part_by_places, 80)])
def test_a_part_of_a_split_is_a_view(take, offset):
    view, x = last_view(
        lambda x: take(x).tuple_value, lambda x: relax.TupleGetItem(x, take(relax.const(np.zeros(WIDE))).index)
    )
    assert view.source.same_as(x)
    assert (view.strides, view.offset) == ((768, 96, 1), offset)


@pytest.mark.parametrize("whole", ["int8", "bool"])
def test_numbers_that_are_cut_off_are_no_view(whole):
    view, x = last_view(lambda x: relax.op.astype(x, whole), lambda x: relax.op.astype(x, "float32"))
    assert not view.source.same_as(x)


@pytest.mark.parametrize(("index", "extent", "offset"), [(0, 3, 0), (2, 2, 6 * 96)])
def test_the_last_part_of_a_split_may_be_smaller(index, extent, offset):
    view, x = last_view(lambda x: relax.op.split(x, 3, axis=1), lambda x: relax.TupleGetItem(x, index))
    assert view.source.same_as(x)
    assert (view.strides, view.offset) == ((768, 96, 1), offset) and extent


def test_what_moves_elements_is_a_view_of_what_it_moved():
    view, x = last_view(to_heads, by_heads, lambda x: relax.op.reshape(x, (2, 3, 256)))
    assert not view.source.same_as(x)
    assert view.strides == (768, 256, 1)


def test_numbers_that_are_multiplied_by_are_a_factor():
    view, x = last_view(
        lambda x: relax.op.multiply(x, number(3.0)), to_heads, lambda x: relax.op.divide(x, number([2.0])), by_heads
    )
    assert view.source.same_as(x) and view.factor == 1.5


@pytest.mark.parametrize(
    "other", [relax.op.exp, lambda x: relax.op.multiply(x, x), lambda x: relax.op.divide(x, number(0.0))]
)
def test_what_computes_is_no_view(other):
    view, x = last_view(other, to_heads)
    assert not view.source.same_as(x)


def test_a_number_is_read_as_it_was_before_conversions():
    rounded, whole = (relax.BlockBuilder().normalize(relax.op.astype(number(2.7), to)) for to in ("float16", "int32"))
    assert number_of(rounded, {}) == pytest.approx(2.7, abs=1e-6)
    assert number_of(whole, {}) is None
    assert number_of(number([1.0, 2.0]), {}) is None
    assert multiple_of(None, {}) is None
