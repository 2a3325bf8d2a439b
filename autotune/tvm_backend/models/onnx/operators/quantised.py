"""Operators on quantised integers, computed in floats that hold these integers: right, but no faster.

A float holds every integer up to 2^24, so that a sum over few products is exact and a longer one is rounded in its
last digits, as the scales that follow round anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, attributes_of
from autotune.tvm_backend.types import NodeProto

_FLOAT = 1
_UINT8 = 2
_INT8 = 3
_INT32 = 6
_RANGE = {_UINT8: (0, 255), _INT8: (-128, 127)}
_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def qlinear_conv(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: x and w, each with scale and zero point, the output's scale and zero point, an int32 bias or none."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.input[:8]
    rank = len(nodes.shape(x))
    product = _conv(
        node, nodes, centred(nodes, x, x_zero), centred(nodes, w, w_zero, _channels_first(nodes, w, w_zero))
    )
    if len(node.input) > 8 and node.input[8]:
        bias = nodes.reshape(nodes.cast(node.input[8], _FLOAT), (1, -1, *[1] * (rank - 2)))
        product = nodes.op("Add", product, bias)
    scale = _scale(nodes, x_scale, w_scale, y_scale)
    return [_requantised(nodes, product, _along(nodes, scale, w_scale, (1, -1, *[1] * (rank - 2))), y_zero)]


def conv_integer(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: x, w and their zero points, which may be left out; the output is int32."""
    x, w, x_zero, w_zero = [*node.input, "", ""][:4]
    product = _conv(
        node, nodes, centred(nodes, x, x_zero), centred(nodes, w, w_zero, _channels_first(nodes, w, w_zero))
    )
    return [nodes.cast(nodes.op("Round", product), _INT32)]


def qlinear_matmul(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: a and b, each with scale and zero point, then the output's scale and zero point."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.input
    rows = (-1, 1)  # the scales of a are by row, those of b by column
    product = nodes.op("MatMul", centred(nodes, a, a_zero, rows), centred(nodes, b, b_zero))
    scale = _scale(nodes, _along(nodes, a_scale, a_scale, rows), b_scale, y_scale)
    return [_requantised(nodes, product, scale, y_zero)]


def matmul_integer(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: a, b and their zero points, which may be left out; the output is int32."""
    a, b, a_zero, b_zero = [*node.input, "", ""][:4]
    product = nodes.op("MatMul", centred(nodes, a, a_zero, (-1, 1)), centred(nodes, b, b_zero))
    return [nodes.cast(nodes.op("Round", product), _INT32)]


def centred(nodes: Nodes, x: str, zero: str, shape: Sequence[int] = ()) -> str:
    """Integers as floats around their zero point, which has `shape` where it is not the same for all."""
    value = nodes.cast(x, _FLOAT)
    if not zero:
        return value
    point = nodes.cast(zero, _FLOAT)
    return nodes.op("Sub", value, _along(nodes, point, zero, shape) if shape else point)


def _scale(nodes: Nodes, first: str, second: str, result: str) -> str:
    """What a product of two scaled values is multiplied by to be scaled like the result."""
    a, b, c = (nodes.cast(scale, _FLOAT) for scale in (first, second, result))
    return nodes.op("Div", nodes.op("Mul", a, b), c)


def _along(nodes: Nodes, value: str, like: str, shape: Sequence[int]) -> str:
    """A value for each slice of an axis, reshaped to be broadcast over it; one for all stays as it is."""
    return nodes.reshape(value, shape) if int(np.prod(nodes.shape(like))) > 1 else value


def _channels_first(nodes: Nodes, weight: str, zero: str) -> Sequence[int]:
    return (-1, *[1] * (len(nodes.shape(weight)) - 1)) if zero else ()


def _conv(node: NodeProto, nodes: Nodes, x: str, w: str) -> str:
    window = {name: value for name, value in attributes_of(node).items() if name in _WINDOW}
    return nodes.op("Conv", x, w, **window)


def _requantised(nodes: Nodes, product: str, scale: str, zero: str) -> str:
    """Scaled, rounded to even, moved to the zero point and kept within the range of its type."""
    dtype = nodes.dtype(zero)
    if dtype not in _RANGE:
        raise ValueError(f"quantised to ONNX type {dtype}; 8-bit integers are supported")
    rounded = nodes.op("Round", nodes.op("Mul", product, scale))
    return nodes.cast(nodes.clip(nodes.op("Add", rounded, nodes.cast(zero, _FLOAT)), *_RANGE[dtype]), dtype)
