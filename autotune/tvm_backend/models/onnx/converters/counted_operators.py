"""Operators of ONNX that put out as many rows as the data say: as many as there can be, and how many there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import static_shape
from autotune.tvm_backend.operators.counted_rows import (
    Suppression,
    kept_places_kernel,
    suppression_kernel,
    unique_kernel,
)
from autotune.tvm_backend.types import BlockBuilder, Expr, PrimFunc

Inputs = Sequence[Any]  # an expression, or None for what is left out


def non_zero(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit the indices (rank, elements) of the elements that are not zero, and their count."""
    (x,) = inputs
    shape = static_shape(x)
    mask = builder.emit(relax.op.not_equal(x, relax.const(0, str(x.ty.dtype)))) if str(x.ty.dtype) != "bool" else x
    places, count = _kept_places(builder, mask, prod(shape))
    steps = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    columns = [relax.const(np.reshape(values, (-1, 1)), "int64") for values in (steps, shape)]
    rows = builder.emit(relax.op.floor_divide(builder.emit(relax.op.expand_dims(places, 0)), columns[0]))
    return relax.Tuple([builder.emit(relax.op.floor_mod(rows, columns[1])), count])


def compress(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit the slices for which a condition (size,) is true, and their count."""
    data, condition = inputs
    axis = attributes.get("axis")
    if axis is None:
        data = builder.emit(relax.op.reshape(data, (prod(static_shape(data)),)))
    places, count = _kept_places(builder, condition, *static_shape(condition))
    return relax.Tuple([builder.emit(relax.op.take(data, places, int(axis or 0))), count])


def unique(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit the slices that differ, the index of the first of each, which one each slice is, how many are, the count."""
    (x,) = inputs
    axis = attributes.get("axis")
    if axis is None:
        x = builder.emit(relax.op.reshape(x, (prod(static_shape(x)),)))
    along = int(axis or 0) % len(static_shape(x))
    order = [along, *(item for item in range(len(static_shape(x))) if item != along)]
    count = static_shape(x)[along]
    slices = builder.emit(relax.op.reshape(builder.emit(relax.op.permute_dims(x, order)), (count, -1)))
    is_sorted = bool(attributes.get("sorted", 1))
    program = unique_kernel(count, static_shape(slices)[1], str(x.ty.dtype), is_sorted=is_sorted)
    kinds = [relax.TensorType((size,), "int64") for size in (count + 1, count, count)]
    function = builder.add_func(program, "unique")
    called = builder.emit(relax.call_tir(function, [slices], out_ty=kinds))
    firsts, inverse, numbers = (builder.emit(relax.TupleGetItem(called, place)) for place in range(3))
    places = _first(builder, firsts, count)
    return relax.Tuple(
        [builder.emit(relax.op.take(x, places, along)), places, inverse, numbers, _at(builder, firsts, count)]
    )


def non_maximum_suppression(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit the batch, the class and the box of each box that is kept, (rows, 3), and their count."""
    boxes, scores, most, overlap, least = [*inputs, None, None, None][:5]
    batch, classes, count = static_shape(scores)
    told = Suppression(
        batch,
        classes,
        count,
        min(count, int(most.value.numpy().item())),
        centered=bool(attributes.get("center_point_box", 0)),
        has_least=least is not None,
    )
    zero = relax.const(np.zeros(1, np.float32))
    limits = [zero if item is None else builder.emit(relax.op.reshape(item, (1,))) for item in (overlap, least)]
    operands = [boxes, scores, builder.emit(relax.op.concat(limits, 0))]
    shape = (told.rows + 1, 3)
    kept = _called(builder, suppression_kernel(told), "non_maximum_suppression", operands, shape)
    return relax.Tuple([_first(builder, kept, told.rows), _at(builder, kept, told.rows * 3)])


def _kept_places(builder: BlockBuilder, mask: Expr, count: int) -> tuple[Expr, Expr]:
    """Emit the places (count,) of the elements that are true, and how many there are."""
    flat = builder.emit(relax.op.reshape(mask, (count,)))
    kept = _called(builder, kept_places_kernel(count), "kept_places", [flat], (count + 1,))
    return _first(builder, kept, count), _at(builder, kept, count)


def _called(
    builder: BlockBuilder, program: PrimFunc, name: str, operands: Sequence[Expr], shape: Sequence[int]
) -> Expr:
    function = builder.add_func(program, name)
    return builder.emit(relax.call_tir(function, operands, out_ty=relax.TensorType(shape, "int64")))


def _first(builder: BlockBuilder, rows: Expr, count: int) -> Expr:
    return builder.emit(relax.op.strided_slice(rows, [0], [0], [count]))


def _at(builder: BlockBuilder, values: Expr, place: int) -> Expr:
    """Emit an element of a tensor as a scalar."""
    flat = builder.emit(relax.op.reshape(values, (prod(static_shape(values)),)))
    part = builder.emit(relax.op.strided_slice(flat, [0], [place], [place + 1]))
    return builder.emit(relax.op.reshape(part, ()))
