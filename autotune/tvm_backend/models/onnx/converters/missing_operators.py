"""Operators of ONNX that TVM's importer lacks, and that cannot be written in terms of others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from tvm import relax, te, tirx

from autotune.tvm_backend.expressions import is_tensor_constant, static_shape
from autotune.tvm_backend.types import BlockBuilder, Expr

Inputs = Sequence[Any]  # an expression, or None for what is left out
_TRANSPOSED = {
    1: relax.op.nn.conv1d_transpose,
    2: relax.op.nn.conv2d_transpose,
    3: relax.op.nn.conv3d_transpose,
}


def bit_cast(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit numbers of another type of the same size that have the same bits."""
    (x,) = inputs
    wanted = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(int(attributes["to"])))
    if "bool" in (str(x.ty.dtype), str(wanted)):
        return builder.emit(relax.op.astype(x, str(wanted)))

    def same_bits(value: te.Tensor) -> te.Tensor:
        return te.compute(value.shape, lambda *place: tirx.reinterpret(str(wanted), value[place]), name="bit_cast")

    return builder.emit_te(same_bits, x)


def cumulative_product(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit the products of all elements up to each, along a constant axis.

    Raises:
        ValueError: The axis is computed.
    """
    x, place = inputs
    if not is_tensor_constant(place):
        raise ValueError("its axis is computed")
    axis = int(place.value.numpy().item()) % len(static_shape(x))
    exclusive = bool(attributes.get("exclusive", 0))
    if not attributes.get("reverse", 0):
        return builder.emit(relax.op.cumprod(x, axis, str(x.ty.dtype), exclusive))
    mirrored = builder.emit(relax.op.flip(x, axis))
    product = builder.emit(relax.op.cumprod(mirrored, axis, str(x.ty.dtype), exclusive))
    return builder.emit(relax.op.flip(product, axis))


def eye_like(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Return a constant matrix of the shape of another, with ones on a diagonal."""
    (x,) = inputs
    rows, columns = static_shape(x)
    named = attributes.get("dtype")
    dtype = str(x.ty.dtype) if named is None else onnx.helper.tensor_dtype_to_np_dtype(int(named))
    return relax.const(np.eye(rows, columns, int(attributes.get("k", 0))), str(np.dtype(dtype)))


def columns_to_image(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit the sum of the columns of all windows: a transposed convolution whose weights say where each row belongs.

    Args:
        builder: Where it is emitted.
        inputs: Columns (N, channels * pixels of a window, windows), and the sizes of the image and of a window.
        attributes: As the file has them.

    Raises:
        ValueError: The sizes are computed, or the image has neither one nor two nor three dimensions.
    """
    columns, image, block = inputs
    if not (is_tensor_constant(image) and is_tensor_constant(block)):
        raise ValueError("the sizes of its image or of its windows are computed")
    sizes, kernel = (list(map(int, item.value.numpy())) for item in (image, block))
    rank = len(sizes)
    if rank not in _TRANSPOSED:
        raise ValueError(f"its image has {rank} dimensions; 1, 2 and 3 are supported")
    strides, dilations = (list(map(int, attributes.get(name) or [1] * rank)) for name in ("strides", "dilations"))
    pads = list(map(int, attributes.get("pads") or [0] * 2 * rank))
    spans = [
        sizes[axis] + pads[axis] + pads[rank + axis] - dilations[axis] * (kernel[axis] - 1) - 1 for axis in range(rank)
    ]
    places = [span // stride + 1 for span, stride in zip(spans, strides, strict=True)]
    left_over = [span % stride for span, stride in zip(spans, strides, strict=True)]
    batch, rows, _ = static_shape(columns)
    taps = math.prod(kernel)
    weights = np.tile(np.eye(taps).reshape(taps, 1, *kernel), (rows // taps, *[1] * (rank + 1)))
    spread = builder.emit(relax.op.reshape(columns, (batch, rows, *places)))
    constant = relax.const(weights.astype(str(columns.ty.dtype)))
    emitted = _TRANSPOSED[rank](spread, constant, strides, pads, left_over, dilations, groups=rows // taps)
    return builder.emit(emitted)


@dataclass(frozen=True)
class _Windows:
    """The windows of a deformable convolution: sizes and steps by height and width, and how channels are divided."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]  # padding
    groups: int
    offset_groups: int

    @classmethod
    def of(cls, kernel: Sequence[int], attributes: Mapping[str, Any]) -> _Windows:
        """Return the windows of an operator of the file."""
        return cls(
            _pair(kernel),
            _pair(attributes.get("strides") or (1, 1)),
            _pair(attributes.get("dilations") or (1, 1)),
            _pair(attributes.get("pads") or (0, 0)),
            int(attributes.get("group", 1)),
            int(attributes.get("offset_group", 1)),
        )


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def deformable_convolution(builder: BlockBuilder, inputs: Inputs, attributes: Mapping[str, Any]) -> Expr:
    """Emit a convolution whose windows take each pixel at an offset of its own, which is an input.

    The pixels are gathered as columns by bilinear interpolation, and multiplied by the weights as one product.

    Source: Dai et al., Deformable Convolutional Networks (2017); the mask is that of Zhu et al., Deformable ConvNets v2
    (2018).

    Args:
        builder: Where it is emitted.
        inputs: x (N, C, H, W), weights, offsets (N, offset groups * kernel * 2, OH, OW), and a bias (channels) and a
            mask (N, offset groups * kernel, OH, OW), which may be left out.
        attributes: As the file has them.

    Raises:
        ValueError: The input has other than two spatial dimensions.
    """
    x, weights, offsets, bias, mask = [*inputs, None, None][:5]
    batch, channels = static_shape(x)[:2]
    out_channels, _, *kernel = static_shape(weights)
    if len(kernel) != 2:
        raise ValueError(f"its windows have {len(kernel)} dimensions; 2 are supported")
    windows = _Windows.of(kernel, attributes)

    def deformed_windows(*given: te.Tensor) -> te.Tensor:
        return _columns(windows, *given)

    columns = builder.emit_te(deformed_windows, *(item for item in (x, offsets, mask) if item is not None))
    height, width = static_shape(offsets)[2:]
    depth = channels // windows.groups * kernel[0] * kernel[1]
    rows = builder.emit(relax.op.reshape(columns, (batch, windows.groups, depth, height * width)))
    matrix = builder.emit(relax.op.reshape(weights, (windows.groups, out_channels // windows.groups, depth)))
    product = builder.emit(relax.op.matmul(matrix, rows))
    result = builder.emit(relax.op.reshape(product, (batch, out_channels, height, width)))
    if bias is None:
        return result
    return builder.emit(relax.op.add(result, builder.emit(relax.op.reshape(bias, (1, out_channels, 1, 1)))))


def _columns(windows: _Windows, x: te.Tensor, offsets: te.Tensor, *masks: te.Tensor) -> te.Tensor:
    """Return the pixels of all windows (N, C, kernel height, kernel width, OH, OW), times their mask."""
    batch, channels, *sizes = (int(size) for size in x.shape)
    out = [int(size) for size in offsets.shape[2:]]
    taps = windows.kernel[0] * windows.kernel[1]
    per_group = channels // windows.offset_groups

    def pixel(n: Any, c: Any, i: Any, j: Any, h: Any, w: Any) -> Any:
        tap = (c // per_group) * taps + i * windows.kernel[1] + j
        places = []
        for axis, (out_place, tap_place) in enumerate(((h, i), (w, j))):
            regular = out_place * windows.strides[axis] - windows.before[axis] + tap_place * windows.dilations[axis]
            places.append(regular.astype(x.dtype) + offsets[n, 2 * tap + axis, h, w])
        value = _between(x, n, c, places, sizes)
        return value * masks[0][n, tap, h, w] if masks else value

    return te.compute((batch, channels, *windows.kernel, *out), pixel, name="deformed_windows")


def _between(x: te.Tensor, n: Any, c: Any, places: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Interpolate between the four pixels around a place; those outside of the image are 0."""
    low = [tirx.floor(place) for place in places]
    share = [place - lower for place, lower in zip(places, low, strict=True)]
    total = tirx.const(0, x.dtype)
    for down in (0, 1):
        for right in (0, 1):
            row, column = (lower + step for lower, step in zip(low, (down, right), strict=True))
            inside = tirx.all(row >= 0, row < sizes[0], column >= 0, column < sizes[1])
            weight = (share[0] if down else 1 - share[0]) * (share[1] if right else 1 - share[1])
            # Out of range is compared as a float: what becomes an index is never out of an integer's range.
            indices = [tirx.if_then_else(inside, index, 0.0).astype("int32") for index in (row, column)]
            total = total + tirx.if_then_else(inside, weight * x[n, c, indices[0], indices[1]], tirx.const(0, x.dtype))
    return total
