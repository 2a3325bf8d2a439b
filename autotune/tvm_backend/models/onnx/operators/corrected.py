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
_PAIRWISE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Max": relax.op.maximum,
    "Mean": relax.op.add,
    "Min": relax.op.minimum,
    "Sum": relax.op.add,
}


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
    if text_attribute(attributes, "direction", "") == "LEFT":
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


def is_bounded(kind: str, inputs: Sequence[Expr | None]) -> bool:
    """Return whether an operator is a `Clip` of floats whose bounds are constant numbers."""
    if kind != "Clip" or len(inputs) < 2:
        return False
    value, *bounds = inputs
    if value is None or is_tensor_constant(value) or float_dtype(value) != "float32":
        return False
    return all(bound is None or (is_tensor_constant(bound) and bound.value.numpy().size == 1) for bound in bounds)


def clip(builder: BlockBuilder, inputs: Sequence[Expr | None]) -> Expr:
    """Emit a `Clip` as a maximum and a minimum: TVM asks for each bound whether it is NaN, which hides the number.

    A bound that is NaN is none.
    """
    value, *bounds = inputs
    for bound, operator in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=False):
        number = np.nan if bound is None else float(bound.value.numpy().item())
        if not np.isnan(number):
            value = builder.emit(operator(value, relax.const(number, "float32")))
    return value


def has_known_rows(kind: str, inputs: Sequence[Expr | None]) -> bool:
    """Return whether an operator is a `Gather` from a tensor of known shape by constant indices."""
    if kind != "Gather" or len(inputs) != 2:
        return False
    data, indices = inputs
    if data is None or indices is None:
        return False
    return _is_computed(data) and is_tensor_constant(indices)


def gather(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> Expr:
    """Emit a `Gather` by constant indices: TVM finds out as the model runs whether they count from the end."""
    data, indices = inputs
    shape = static_shape(data)
    axis = int(attributes.get("axis", 0)) % len(shape)
    places = indices.value.numpy()
    if places.size and not -shape[axis] <= places.min() <= places.max() < shape[axis]:
        raise ValueError(f"it takes row {places.min()} or {places.max()} of {shape[axis]}")
    return builder.emit(relax.op.take(data, relax.const(np.where(places < 0, places + shape[axis], places)), axis))


def has_known_pads(kind: str, inputs: Sequence[Expr | None], attributes: Mapping[str, Any]) -> bool:
    """Return whether an operator is a `Pad` of float32 with a constant, whose widths are constant."""
    if kind != "Pad" or not 2 <= len(inputs) <= 3 or text_attribute(attributes, "mode", "constant") != "constant":
        return False
    data, *constants = inputs
    if data is None or is_tensor_constant(data) or float_dtype(data) != "float32" or not static_shape(data):
        return False
    given = [constant for constant in constants if constant is not None]
    return all(map(is_tensor_constant, given)) and len(given) > 0 and given[0].value.numpy().min() >= 0


def pad(builder: BlockBuilder, inputs: Sequence[Expr]) -> Expr:
    """Emit a `Pad` as an operator: TVM's importer emits a tensor program, and no layout passes through that."""
    data, pads, *filled = inputs
    before, after = np.split(pads.value.numpy(), 2)
    value = float(filled[0].value.numpy().item()) if filled and filled[0] is not None else 0.0
    return builder.emit(relax.op.nn.pad(data, np.stack([before, after], axis=1).ravel().tolist(), "constant", value))


def joins_nothing(kind: str, inputs: Sequence[Expr | None]) -> bool:
    """Return whether an operator is a `Concat` with empty tensors, of which TVM makes loops that it cannot lower."""
    return kind == "Concat" and any(map(_is_empty, inputs)) and not all(map(_is_empty, inputs))


def concat(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> Expr:
    """Emit a `Concat` of what is not empty."""
    filled = [item for item in inputs if not _is_empty(item)]
    return filled[0] if len(filled) == 1 else builder.emit(relax.op.concat(filled, int(attributes["axis"])))


def has_empty_part(kind: str, inputs: Sequence[Expr | None]) -> bool:
    """Return whether an operator is a `Split` with an empty part, of which TVM makes loops that it cannot lower."""
    if kind != "Split" or len(inputs) != 2:
        return False
    x, sizes = inputs
    if x is None or sizes is None or not is_tensor_constant(sizes):
        return False
    return _is_computed(x) and 0 in sizes.value.numpy()


def split(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> Expr:
    """Emit a `Split` as slices. An empty part is a constant."""
    x, sizes = inputs
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


def _is_computed(item: Expr) -> bool:
    """Whether an expression is a tensor of a known shape with axes, and no constant."""
    return isinstance(item.ty, relax.TensorType) and not is_tensor_constant(item) and bool(static_shape(item))


def _is_empty(item: Expr | None) -> bool:
    return item is not None and isinstance(item.ty, relax.TensorType) and 0 in static_shape(item)


def is_number(kind: str, inputs: Sequence[Expr | None]) -> bool:
    """Return whether an operator is a `ConstantOfShape` of no axes, which TVM broadcasts a list of one number to."""
    return kind == "ConstantOfShape" and inputs[0] is not None and static_shape(inputs[0]) == (0,)


def number(attributes: Mapping[str, Any]) -> Expr:
    """Return the number that a `ConstantOfShape` of no axes is."""
    value = attributes.get("value")
    given = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    return relax.const(given.reshape(()), str(given.dtype))


def is_of_whole_rows(kind: str, inputs: Sequence[Expr | None], attributes: Mapping[str, Any]) -> bool:
    """Return whether an operator is an `RMSNormalization` over all axes, at which TVM's fails."""
    x = inputs[0]
    rank = len(static_shape(x)) if kind == "RMSNormalization" and x is not None else 0
    return rank > 0 and int(attributes.get("axis", -1)) % rank == 0


def rms_normalization(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> Expr:
    """Emit an `RMSNormalization` over all axes as one of a single row."""
    x, scale = inputs
    shape = static_shape(x)
    row = builder.emit(relax.op.reshape(x, (1, math.prod(shape))))
    wide = builder.emit(relax.op.broadcast_to(scale, shape))
    weight = builder.emit(relax.op.reshape(wide, (math.prod(shape),)))
    normal = builder.emit(relax.op.nn.rms_norm(row, weight, [1], float(attributes.get("epsilon", 1e-5))))
    return builder.emit(relax.op.reshape(normal, shape))


def check_roi_align(attributes: Mapping[str, Any]) -> None:
    """Check that regions are averaged: TVM takes maxima of other numbers than ONNX says.

    Raises:
        ValueError: Maxima are asked for.
    """
    if text_attribute(attributes, "mode", "avg") != "avg":
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
    order = [0, 1, 3, 5, 2, 4] if text_attribute(attributes, "mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    split = relax.op.reshape(x, (batch, channels, height // size, size, width // size, size))
    turned = builder.emit(relax.op.permute_dims(builder.emit(split), order))
    return builder.emit(relax.op.reshape(turned, (batch, channels * size * size, height // size, width // size)))


def with_pads(inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a convolution with `pads` in place of `auto_pad`, where the shapes are known.

    TVM's importer pads the input in an operator of its own. It copies the tensor, and no layout passes through it.

    Args:
        inputs: Of the convolution.
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


def is_pairwise(kind: str, inputs: Sequence[Expr]) -> bool:
    """Return whether an operator is one of these, on tensors of which not all are constants.

    The importer itself computes what depends on constants alone.
    """
    tensors = all(isinstance(getattr(item, "ty", None), relax.TensorType) for item in inputs)
    return kind in _PAIRWISE and tensors and not all(isinstance(item, tvm.ir.GenericConst) for item in inputs)


def pairwise(builder: BlockBuilder, kind: str, inputs: Sequence[Expr]) -> Expr:
    """Emit the largest, the smallest, the sum or the mean of tensors, which broadcast, two at a time.

    TVM's importer stacks them and reduces over the stack. That copies each, and nothing before it is fused with what
    comes after it.
    """
    joined: Expr = reduce(lambda left, right: builder.emit(_PAIRWISE[kind](left, right)), inputs)
    if kind != "Mean":
        return joined
    return builder.emit(relax.op.divide(joined, relax.const(len(inputs), str(inputs[0].ty.dtype))))


def _reduction(attributes: Mapping[str, Any]) -> str:
    name = text_attribute(attributes, "reduction", "none")
    if name not in _REDUCTIONS:
        raise ValueError(f"it reduces by {name!r}, for which there is no rule")
    return _REDUCTIONS[name]
