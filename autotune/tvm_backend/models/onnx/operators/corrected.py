"""Operators of which TVM's importer computes something else than ONNX says, takes only some forms, or copies much."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from autotune.tvm_backend.expressions import float_dtype, is_tensor_constant, static_shape
from autotune.tvm_backend.models.onnx.operators.nodes import text_attribute
from autotune.tvm_backend.types import BlockBuilder, Expr

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}
_BEFORE_FIRST = {b"SAME_UPPER": False, b"SAME_LOWER": True}  # whether an odd element goes before the input

# The attributes of an operator, as the file has them; texts are bytes.
Attributes = Mapping[str, Any]


def bit_shift(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Attributes) -> Expr:
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
    if text_attribute(attributes, "direction", "") == "LEFT":
        shifted = builder.emit(relax.op.left_shift(value, steps))
    else:
        shifted = builder.emit(relax.op.right_shift(value, steps))
        if not dtype.startswith("u"):
            return shifted
    return builder.emit(relax.op.where(fits, shifted, relax.const(0, dtype)))


def is_inf(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Attributes) -> Expr:
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


def check_roi_align(attributes: Attributes) -> None:
    """Check that regions are averaged: TVM takes maxima of other numbers than ONNX says.

    Raises:
        ValueError: Maxima are asked for.
    """
    if text_attribute(attributes, "mode", "avg") != "avg":
        raise ValueError("it takes the maximum of a region, for which there is no rule")


def scatter_elements(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Attributes) -> Expr:
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


def _reduction(attributes: Attributes) -> str:
    name = text_attribute(attributes, "reduction", "none")
    if name not in _REDUCTIONS:
        raise ValueError(f"it reduces by {name!r}, for which there is no rule")
    return _REDUCTIONS[name]


def space_to_depth(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Attributes) -> Expr:
    """Emit blocks of pixels as channels: all channels of each pixel in turn (DCR), or all pixels of each channel."""
    (x,) = inputs
    size = int(attributes["blocksize"])
    batch, channels, height, width = static_shape(x)
    order = [0, 1, 3, 5, 2, 4] if text_attribute(attributes, "mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    split = relax.op.reshape(x, (batch, channels, height // size, size, width // size, size))
    turned = builder.emit(relax.op.permute_dims(builder.emit(split), order))
    return builder.emit(relax.op.reshape(turned, (batch, channels * size * size, height // size, width // size)))


def with_pads(inputs: Sequence[Expr], attributes: Attributes) -> dict[str, Any]:
    """Return the attributes of a convolution with `pads` in place of `auto_pad`, where the shapes are known.

    TVM's importer pads the input in an operator of its own. It copies the tensor, and no layout passes through it.

    Args:
        attributes: As the file has them; texts are bytes.
    """
    data, weights = (static_shape(item)[2:] for item in inputs[:2])
    mode = attributes.get("auto_pad")
    if mode not in _BEFORE_FIRST or not data:
        return dict(attributes)
    kernel = attributes.get("kernel_shape") or weights
    strides, dilations = (attributes.get(name) or [1] * len(data) for name in ("strides", "dilations"))
    totals = [
        max((-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size, 0)
        for size, window, stride, dilation in zip(data, kernel, strides, dilations, strict=True)
    ]
    before = [-(-total // 2) if _BEFORE_FIRST[mode] else total // 2 for total in totals]
    after = [total - own for total, own in zip(totals, before, strict=True)]
    rest = {name: value for name, value in attributes.items() if name != "auto_pad"}
    return {**rest, "pads": [*before, *after]}


# ---- Those that TVM takes in other forms: each returns None for an operator that it leaves to TVM's importer.


def clip(builder: BlockBuilder, inputs: Sequence[Expr | None], _: Attributes) -> Expr | None:
    """Emit a `Clip` of floats as a maximum and a minimum: TVM asks for each bound whether it is NaN, which hides it.

    A bound that is NaN is none.
    """
    value, *bounds = inputs
    if not bounds or value is None or is_tensor_constant(value) or float_dtype(value) != "float32":
        return None
    if not all(bound is None or (is_tensor_constant(bound) and bound.value.numpy().size == 1) for bound in bounds):
        return None
    for bound, operator in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=False):
        number = np.nan if bound is None else float(bound.value.numpy().item())
        if not np.isnan(number):
            value = builder.emit(operator(value, relax.const(number, "float32")))
    return value


def gather(builder: BlockBuilder, inputs: Sequence[Expr | None], attributes: Attributes) -> Expr | None:
    """Emit a `Gather` by constant indices: TVM finds out as the model runs whether they count from the end."""
    data, indices = inputs
    if data is None or indices is None or not _is_computed(data) or not is_tensor_constant(indices):
        return None
    shape = static_shape(data)
    axis = int(attributes.get("axis", 0)) % len(shape)
    places = indices.value.numpy()
    if places.size and not -shape[axis] <= places.min() <= places.max() < shape[axis]:
        raise ValueError(f"it takes row {places.min()} or {places.max()} of {shape[axis]}")
    return builder.emit(relax.op.take(data, relax.const(np.where(places < 0, places + shape[axis], places)), axis))


def pad(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Attributes) -> Expr | None:
    """Emit a `Pad` of float32 by constant widths: TVM emits a tensor program, and no layout passes through that."""
    data, *constants = inputs
    if not 1 <= len(constants) <= 2 or text_attribute(attributes, "mode", "constant") != "constant":
        return None
    if data is None or is_tensor_constant(data) or float_dtype(data) != "float32" or not static_shape(data):
        return None
    given = [constant for constant in constants if constant is not None]
    if not given or not all(map(is_tensor_constant, given)) or given[0].value.numpy().min() < 0:
        return None
    pads, *filled = constants
    before, after = np.split(pads.value.numpy(), 2)
    value = float(filled[0].value.numpy().item()) if filled and filled[0] is not None else 0.0
    return builder.emit(relax.op.nn.pad(data, np.stack([before, after], axis=1).ravel().tolist(), "constant", value))


def concat(builder: BlockBuilder, inputs: Sequence[Expr | None], attributes: Attributes) -> Expr | None:
    """Emit what is not empty of a `Concat`: of empty tensors TVM makes loops that it cannot lower."""
    filled = [item for item in inputs if not _is_empty(item)]
    if not filled or len(filled) == len(inputs):
        return None
    return filled[0] if len(filled) == 1 else builder.emit(relax.op.concat(filled, int(attributes["axis"])))


def split(builder: BlockBuilder, inputs: Sequence[Expr | None], attributes: Attributes) -> Expr | None:
    """Emit a `Split` with an empty part, which becomes a constant: TVM makes loops of it that it cannot lower."""
    x, sizes = [*inputs, None][:2]
    if x is None or sizes is None or not is_tensor_constant(sizes) or not _is_computed(x):
        return None
    if 0 not in sizes.value.numpy():
        return None
    shape = static_shape(x)
    axis = int(attributes.get("axis", 0)) % len(shape)
    pieces = []
    start = 0
    for size in map(int, sizes.value.numpy()):
        if size:
            pieces.append(builder.emit(relax.op.strided_slice(x, [axis], [start], [start + size])))
        else:
            empty = np.zeros((*shape[:axis], 0, *shape[axis + 1 :]))
            pieces.append(builder.emit(relax.const(empty, str(x.ty.dtype))))
        start += size
    return relax.Tuple(pieces)


def number(_: BlockBuilder, inputs: Sequence[Expr | None], attributes: Attributes) -> Expr | None:
    """Return the number that a `ConstantOfShape` of no axes is: TVM broadcasts a list of one number to it."""
    if inputs[0] is None or static_shape(inputs[0]) != (0,):
        return None
    value = attributes.get("value")
    given = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    return relax.const(given.reshape(()), str(given.dtype))


def rms_normalization(builder: BlockBuilder, inputs: Sequence[Expr | None], attributes: Attributes) -> Expr | None:
    """Emit an `RMSNormalization` over all axes, at which TVM's fails, as one of a single row."""
    x, scale = inputs
    shape = () if x is None else static_shape(x)
    if not shape or int(attributes.get("axis", -1)) % len(shape) != 0:
        return None
    row = builder.emit(relax.op.reshape(x, (1, math.prod(shape))))
    wide = builder.emit(relax.op.broadcast_to(scale, shape))
    weight = builder.emit(relax.op.reshape(wide, (math.prod(shape),)))
    normal = builder.emit(relax.op.nn.rms_norm(row, weight, [1], float(attributes.get("epsilon", 1e-5))))
    return builder.emit(relax.op.reshape(normal, shape))


def pairwise(
    operator: Callable[[Expr, Expr], Expr], builder: BlockBuilder, inputs: Sequence[Expr], _: Attributes
) -> Expr | None:
    """Emit the largest, the smallest or the sum of tensors, which broadcast, two at a time.

    TVM's importer stacks them and reduces over the stack. That copies each, and nothing before it is fused with what
    comes after it. What depends on constants alone it computes itself.
    """
    tensors = all(isinstance(getattr(item, "ty", None), relax.TensorType) for item in inputs)
    if not tensors or all(isinstance(item, tvm.ir.GenericConst) for item in inputs):
        return None
    return reduce(lambda left, right: builder.emit(operator(left, right)), inputs)


def mean(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Attributes) -> Expr | None:
    """Emit the mean of tensors; see `pairwise`."""
    total = pairwise(relax.op.add, builder, inputs, attributes)
    if total is None:
        return None
    return builder.emit(relax.op.divide(total, relax.const(len(inputs), str(inputs[0].ty.dtype))))


def _is_computed(item: Expr) -> bool:
    """Whether an expression is a tensor of a known shape with axes, and no constant."""
    return isinstance(item.ty, relax.TensorType) and not is_tensor_constant(item) and bool(static_shape(item))


def _is_empty(item: Expr | None) -> bool:
    return item is not None and isinstance(item.ty, relax.TensorType) and 0 in static_shape(item)
