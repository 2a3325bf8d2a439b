"""Operators of which TVM's importer computes something else than ONNX says, or takes only some forms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from autotune.tvm_backend.passes.rewrite import static_shape
from autotune.tvm_backend.types import BlockBuilder, Expr

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def bit_shift(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> Expr:
    """Emit a shift. One by as many bits as there are or more, or by less than none, leaves nothing but the sign.

    An instruction takes the number of bits modulo their number.
    """
    value, count = inputs
    dtype = str(value.ty.dtype)
    bits = np.dtype(dtype).itemsize * 8
    fits = builder.emit(relax.op.less(count, relax.const(bits, str(count.ty.dtype))))
    if not dtype.startswith("u"):
        positive = builder.emit(relax.op.greater_equal(count, relax.const(0, str(count.ty.dtype))))
        fits = builder.emit(relax.op.logical_and(fits, positive))
    steps = builder.emit(relax.op.where(fits, count, relax.const(bits - 1, str(count.ty.dtype))))
    if _text(attributes, "direction", "") == "LEFT":
        shifted = builder.emit(relax.op.left_shift(value, steps))
    else:
        shifted = builder.emit(relax.op.right_shift(value, steps))
        if not dtype.startswith("u"):
            return shifted
    return builder.emit(relax.op.where(fits, shifted, relax.const(0, dtype)))


def is_inf(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> Expr:
    """Emit whether numbers are infinite, of both signs or of one."""
    (x,) = inputs
    dtype = str(x.ty.dtype)
    signs = [
        relax.const(sign * math.inf, dtype)
        for sign, name in ((1, "detect_positive"), (-1, "detect_negative"))
        if int(attributes.get(name, 1))
    ]
    if not signs:
        return builder.emit(relax.op.full(static_shape(x), relax.const(False, "bool"), "bool"))
    hits = [builder.emit(relax.op.equal(x, sign)) for sign in signs]
    return hits[0] if len(hits) == 1 else builder.emit(relax.op.logical_or(*hits))


def check_roi_align(attributes: Mapping[str, Any]) -> None:
    """Check that regions are averaged: TVM takes maxima of other numbers than ONNX says.

    Raises:
        ValueError: Maxima are asked for.
    """
    if _text(attributes, "mode", "avg") != "avg":
        raise ValueError("it takes the maximum of a region, for which there is no rule")


def scatter_elements(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> Expr:
    """Emit a copy of a tensor with other elements in places along an axis, or with their sum, product or extremes."""
    data, indices, updates = inputs
    shape = static_shape(data)
    given = static_shape(indices)
    axis = int(attributes.get("axis", 0)) % max(len(shape), 1)
    reduction = _reduction(attributes)
    if not given:
        raise ValueError("the shape of its indices is not known")
    if all(size == other for place, (size, other) in enumerate(zip(shape, given, strict=True)) if place != axis):
        return builder.emit(relax.op.scatter_elements(data, indices, updates, axis, reduction))
    count = math.prod(given)
    dtype = str(indices.ty.dtype)
    flat = builder.emit(relax.op.reshape(indices, (count, 1)))
    from_end = builder.emit(relax.op.add(flat, relax.const(shape[axis], dtype)))
    flat = builder.emit(relax.op.where(relax.op.less(flat, relax.const(0, dtype)), from_end, flat))
    grid = np.moveaxis(np.indices(given), 0, -1).reshape(count, len(shape)).astype(dtype)
    columns = [flat if place == axis else relax.const(grid[:, place : place + 1], dtype) for place in range(len(shape))]
    places = builder.emit(relax.op.concat(columns, axis=1))
    return builder.emit(relax.op.scatter_nd(data, places, relax.op.reshape(updates, (count,)), reduction))


def space_to_depth(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> Expr:
    """Emit blocks of pixels as channels: all channels of each pixel in turn (DCR), or all pixels of each channel."""
    (x,) = inputs
    size = int(attributes["blocksize"])
    batch, channels, height, width = static_shape(x)
    order = [0, 1, 3, 5, 2, 4] if _text(attributes, "mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    split = relax.op.reshape(x, (batch, channels, height // size, size, width // size, size))
    turned = builder.emit(relax.op.permute_dims(builder.emit(split), order))
    return builder.emit(relax.op.reshape(turned, (batch, channels * size * size, height // size, width // size)))


def _reduction(attributes: Mapping[str, Any]) -> str:
    name = _text(attributes, "reduction", "none")
    if name not in _REDUCTIONS:
        raise ValueError(f"it reduces by {name!r}, for which there is no rule")
    return _REDUCTIONS[name]


def _text(attributes: Mapping[str, Any], name: str, default: str) -> str:
    value = attributes.get(name, default)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
