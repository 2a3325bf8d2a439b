"""The operators of ONNX on quantised integers, as they are imported: dequantise, compute in floats, quantise.

So all forms of a quantised network become the same one, for which there are integer kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import Conv, DequantizeLinear

from autotune.tvm_backend.expressions import is_tensor_constant, static_shape
from autotune.tvm_backend.types import BlockBuilder, Expr

_OPSET = 11  # of the converter of Conv
_OPSET_OF_DEQUANTIZE = 19
_LARGEST = 255
Array = npt.NDArray[Any]
Inputs = Sequence[Expr | None]


def qlinear_conv(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit a convolution. Inputs: those of x and of w, scale and zero point of the result, an int32 bias or none."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = _filled(inputs, 9)
    scales = [_number(builder, x_scale), _numbers(builder, w_scale)]
    if bias is not None:
        unit = _known_product(builder, *scales)
        bias = _dequantised(builder, bias, unit, None, 0)
    result = _conv(
        builder,
        _dequantised(builder, x, scales[0], x_zero, 1),
        _dequantised(builder, w, scales[1], w_zero, 0),
        bias,
        attributes,
    )
    return _quantised(builder, result, y_scale, y_zero)


def qlinear_matmul(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit a product. Inputs: a and b, each with scale and zero point, then those of the result."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = _filled(inputs, 8)
    rows = len(static_shape(a)) - 2  # the scales of a are by row, those of b by column
    one = _dequantised(builder, a, _numbers(builder, a_scale), a_zero, rows)
    other = _dequantised(builder, b, _numbers(builder, b_scale), b_zero, len(static_shape(b)) - 1)
    return _quantised(builder, builder.emit(relax.op.matmul(one, other)), y_scale, y_zero)


def qgemm(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit ONNX Runtime's product with a bias. The scale and zero point of the result may be left out.

    Raises:
        ValueError: It is scaled by another factor.
    """
    a, a_scale, a_zero, b, b_scale, b_zero, bias, y_scale, y_zero = _filled(inputs, 9)
    if float(attributes.get("alpha", 1.0)) != 1.0:
        raise ValueError("its product is multiplied by alpha, for which there is no rule")
    scales = [_number(builder, a_scale), _numbers(builder, b_scale)]
    columns = 0 if attributes.get("transB") else 1
    one = _dequantised(builder, a, scales[0], a_zero, 0)
    other = _dequantised(builder, b, scales[1], b_zero, columns)
    one, other = (
        builder.emit(relax.op.permute_dims(item)) if attributes.get(option) else item
        for item, option in ((one, "transA"), (other, "transB"))
    )
    result = builder.emit(relax.op.matmul(one, other))
    if bias is not None:
        unit = _known_product(builder, *scales)
        rank = len(static_shape(bias))
        result = builder.emit(relax.op.add(result, _dequantised(builder, bias, unit, None, max(rank - 1, 0))))
    return result if y_scale is None else _quantised(builder, result, y_scale, y_zero)


def conv_integer(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit a convolution with 32-bit sums. Inputs: x, w and their zero points, which may be left out."""
    x, w, x_zero, w_zero = _filled(inputs, 4)
    operands = _centred(builder, x, x_zero, 1), _centred(builder, w, w_zero, 0)
    if is_tensor_constant(w):
        data, weight = (_whole(builder, item) for item in operands)
        return _conv(builder, data, weight, None, attributes)
    return _whole(builder, builder.emit(relax.op.round(_conv(builder, *operands, None, attributes))))


def matmul_integer(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit a product with 32-bit sums. Inputs: a, b and their zero points, which may be left out."""
    a, b, a_zero, b_zero = _filled(inputs, 4)
    operands = (
        _centred(builder, a, a_zero, len(static_shape(a)) - 2),
        _centred(builder, b, b_zero, len(static_shape(b)) - 1),
    )
    if is_tensor_constant(b):
        return builder.emit(relax.op.matmul(*(_whole(builder, item) for item in operands), out_dtype="int32"))
    # A float holds every integer up to 2^24, so that the sums of short products are exact.
    return _whole(builder, builder.emit(relax.op.round(builder.emit(relax.op.matmul(*operands)))))


def matmul_n_bits(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit ONNX Runtime's product with weights of 4 or 8 bits, whose columns are in blocks with a scale each.

    Raises:
        ValueError: The weights have another number of bits, are grouped by an index, or are computed.
    """
    a, packed, scales, zeros, groups, bias = _filled(inputs, 6)
    rows, columns, block = (int(attributes[name]) for name in ("K", "N", "block_size"))
    bits = int(attributes.get("bits", 4))
    if bits not in (4, 8) or groups is not None:
        grouped = "" if groups is None else ", grouped by an index"
        raise ValueError(f"weights of {bits} bits{grouped}; 4 or 8 without are taken")
    if not all(item is None or is_tensor_constant(item) for item in (packed, scales, zeros)):
        raise ValueError("its weights are computed, for which there is no rule")
    blocks = -(-rows // block)
    elements = _elements(packed.value.numpy(), bits, columns * blocks)
    point = np.full(columns * blocks, 1 << (bits - 1), np.uint8)
    if zeros is not None:
        point = _points(zeros.value.numpy(), bits, (columns, blocks))
    weight = _blocks(builder, elements, scales.value.numpy().astype(np.float32).reshape(-1), point)
    wide = builder.emit(relax.op.reshape(weight, (columns, blocks * block)))
    if blocks * block != rows:
        wide = builder.emit(relax.op.strided_slice(wide, axes=[1], begin=[0], end=[rows]))
    product = builder.emit(relax.op.matmul(a, builder.emit(relax.op.permute_dims(wide, [1, 0]))))
    return product if bias is None else builder.emit(relax.op.add(product, bias))


def dequantize_linear(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit a dequantisation, also one of a constant matrix in blocks along one of its axes.

    Raises:
        ValueError: Something else is in blocks.
    """
    x, scale, zero = _filled(inputs, 3)
    block = int(attributes.get("block_size", 0))
    if not block:
        plain = DequantizeLinear.get_converter(_OPSET_OF_DEQUANTIZE)
        return builder.normalize(plain(builder, [x, scale, zero], dict(attributes), None))
    operands = [item for item in (x, scale, zero) if item is not None]
    if len(static_shape(x)) != 2 or not all(map(is_tensor_constant, operands)):
        raise ValueError("only constant matrices in blocks are taken")
    axis = int(attributes.get("axis", 1)) % 2
    across = [item.value.numpy() if axis == 1 else item.value.numpy().T for item in operands]
    elements = across[0]
    columns, rows = elements.shape
    elements = np.pad(elements, [(0, 0), (0, -rows % block)]).reshape(-1, block)
    point = across[2].reshape(-1) if zero is not None else np.zeros(len(elements), elements.dtype)
    weight = _blocks(builder, elements, across[1].reshape(-1).astype(np.float32), point)
    wide = builder.emit(relax.op.reshape(weight, (columns, -(-rows // block) * block)))
    if rows % block:
        wide = builder.emit(relax.op.strided_slice(wide, axes=[1], begin=[0], end=[rows]))
    return wide if axis == 1 else builder.emit(relax.op.permute_dims(wide, [1, 0]))


def dynamic_quantize_linear(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit a quantisation to the range of the values. `dynamic_bytes` knows it again."""
    emit = builder.emit
    x = inputs[0]
    zero = relax.const(np.float32(0))
    high = emit(relax.op.maximum(emit(relax.op.max(x)), zero))
    low = emit(relax.op.minimum(emit(relax.op.min(x)), zero))
    width = emit(relax.op.divide(emit(relax.op.subtract(high, low)), relax.const(np.float32(_LARGEST))))
    scale = emit(relax.op.where(emit(relax.op.equal(width, zero)), relax.const(np.float32(1)), width))
    place = emit(relax.op.negative(emit(relax.op.divide(low, scale))))
    point = emit(relax.op.astype(emit(relax.op.round(emit(relax.op.clip(place, 0, _LARGEST)))), "uint8"))
    quantised = emit(relax.op.quantize(x, scale, point, axis=0, out_dtype="uint8"))
    return relax.Tuple([quantised, scale, point])


def _elements(packed: Array, bits: int, rows: int) -> Array:
    """Unsigned integers of 4 or 8 bits, in so many rows; of two in a byte the lower is the first."""
    values = packed.reshape(rows, -1)
    if bits == 8:
        return values
    return np.stack([values & 15, values >> 4], axis=-1).reshape(rows, -1)


def _points(zeros: Array, bits: int, shape: tuple[int, int]) -> Array:
    """The zero points of blocks (columns, blocks), as one row: bytes as they are packed, or floats.

    Raises:
        ValueError: They are floats, but not whole ones.
    """
    columns, blocks = shape
    points = _elements(zeros, bits, columns)[:, :blocks] if zeros.dtype == np.uint8 else zeros
    whole: Array = points.reshape(-1).astype(np.uint8)
    if not np.array_equal(whole, points.reshape(-1)):
        raise ValueError("its zero points are no whole numbers, for which there is no rule")
    return whole


def _blocks(builder: BlockBuilder, elements: Array, scale: Array, point: Array) -> Expr:
    """Blocks one below the other, as floats."""
    operands = [relax.const(np.ascontiguousarray(item), str(item.dtype)) for item in (elements, scale, point)]
    return builder.emit(relax.op.dequantize(*operands, axis=0, out_dtype="float32"))


def _filled(inputs: Inputs, count: int) -> list[Expr]:
    given = list(inputs)
    return [*given, *[None] * (count - len(given))]


def _conv(builder: BlockBuilder, x: Expr, w: Expr, bias: Expr | None, attributes: Mapping[str, Any]) -> Expr:
    result = builder.normalize(Conv.get_converter(_OPSET)(builder, [x, w, None], dict(attributes), None))
    if bias is None:
        return result
    rank = len(static_shape(x))
    return builder.emit(relax.op.add(result, builder.emit(relax.op.reshape(bias, (1, -1, *[1] * (rank - 2))))))


def _dequantised(builder: BlockBuilder, x: Expr, scale: Expr, zero: Expr | None, axis: int) -> Expr:
    point = relax.const(0, str(x.ty.dtype)) if zero is None else _numbers(builder, zero)
    return builder.emit(relax.op.dequantize(x, scale, point, axis=axis, out_dtype="float32"))


def _quantised(builder: BlockBuilder, x: Expr, scale: Expr, zero: Expr | None) -> Expr:
    point = relax.const(0, "uint8") if zero is None else _number(builder, zero)
    dtype = str(point.ty.dtype)
    return builder.emit(relax.op.quantize(x, _number(builder, scale), point, axis=0, out_dtype=dtype))


def _centred(builder: BlockBuilder, x: Expr, zero: Expr | None, axis: int) -> Expr:
    """Integers around their zero point, as floats."""
    return _dequantised(builder, x, relax.const(np.float32(1)), zero, axis)


def _whole(builder: BlockBuilder, x: Expr) -> Expr:
    return builder.emit(relax.op.astype(x, "int32"))


def _numbers(builder: BlockBuilder, x: Expr) -> Expr:
    """A scale or zero point: a scalar for all, or a vector. ONNX Runtime takes vectors of one element for scalars."""
    size = int(np.prod(static_shape(x)))
    return _reshaped(builder, x, (size,) if size > 1 else ())


def _number(builder: BlockBuilder, x: Expr) -> Expr:
    return _reshaped(builder, x, ())


def _reshaped(builder: BlockBuilder, x: Expr, shape: tuple[int, ...]) -> Expr:
    if static_shape(x) == shape:
        return x
    if is_tensor_constant(x):
        return relax.const(x.value.numpy().reshape(shape), str(x.ty.dtype))
    return builder.emit(relax.op.reshape(x, shape))


def _known_product(builder: BlockBuilder, one: Expr, other: Expr) -> Expr:
    """A product of two scales, which is a constant if they are."""
    if is_tensor_constant(one) and is_tensor_constant(other):
        return relax.const(np.multiply(one.value.numpy(), other.value.numpy()), "float32")
    return builder.emit(relax.op.multiply(one, other))
