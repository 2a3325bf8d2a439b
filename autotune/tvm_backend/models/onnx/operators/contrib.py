"""Operators of ONNX Runtime's own domain that its quantiser and its transformer optimiser write.

Their meaning is that of ONNX Runtime's documentation (docs/ContribOperators.md); attention is in `attention.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, attributes_of
from autotune.tvm_backend.types import NodeProto

_LAYER_NORMALIZATION = 17  # opset


def bias_gelu(node: NodeProto, nodes: Nodes) -> list[str]:
    """The exact GELU of a sum; the bias may be left out."""
    x = _sum_of(nodes, node.input)
    half = nodes.op("Mul", x, nodes.constant_like(0.5, node.input[0]))
    erf = nodes.op("Erf", nodes.op("Div", x, nodes.constant_like(math.sqrt(2), node.input[0])))
    return [nodes.op("Mul", half, nodes.op("Add", erf, nodes.constant_like(1, node.input[0])))]


def fast_gelu(node: NodeProto, nodes: Nodes) -> list[str]:
    """GELU by tanh, of a sum; the bias may be left out."""
    x = _sum_of(nodes, node.input)
    like = node.input[0]
    square = nodes.op("Mul", x, x)
    inner = nodes.op("Mul", square, nodes.constant_like(0.044715 * math.sqrt(2 / math.pi), like))
    inner = nodes.op("Mul", x, nodes.op("Add", inner, nodes.constant_like(math.sqrt(2 / math.pi), like)))
    share = nodes.op("Add", nodes.op("Tanh", inner), nodes.constant_like(1, like))
    return [nodes.op("Mul", nodes.op("Mul", x, nodes.constant_like(0.5, like)), share)]


def quick_gelu(node: NodeProto, nodes: Nodes) -> list[str]:
    """x * sigmoid(alpha * x)."""
    (x,) = node.input
    alpha = nodes.constant_like(attributes_of(node).get("alpha", 1.702), x)
    return [nodes.op("Mul", x, nodes.op("Sigmoid", nodes.op("Mul", x, alpha)))]


def fused_matmul(node: NodeProto, nodes: Nodes) -> list[str]:
    """alpha * A' B', where either may be transposed.

    Raises:
        ValueError: Batches are transposed, too.
    """
    attributes = attributes_of(node)
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        raise ValueError("it transposes batches, for which there is no rule")
    a, b = (
        _transposed(nodes, name) if attributes.get(option) else name
        for name, option in zip(node.input, ("transA", "transB"), strict=True)
    )
    product = nodes.op("MatMul", a, b)
    alpha = attributes.get("alpha", 1.0)
    return [product if alpha == 1 else nodes.op("Mul", product, nodes.constant_like(alpha, node.input[0]))]


def skip_layer_normalization(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: x, what is added to it, the scale, and an offset and a bias that may be left out."""
    x, skip, gamma, beta, bias = padded(node.input, 5)
    total = _sum_of(nodes, (x, skip, bias))
    _refuse_statistics(node)
    return [layer_norm(nodes, total, gamma, beta, _epsilon(node), x), "", "", total]


def skip_simplified_layer_normalization(node: NodeProto, nodes: Nodes) -> list[str]:
    """The same without a mean. Inputs: x, what is added to it, the scale, and a bias that may be left out."""
    x, skip, gamma, bias = padded(node.input, 4)
    total = _sum_of(nodes, (x, skip, bias))
    _refuse_statistics(node)
    return [divided_by_root_mean_square(nodes, total, gamma, _epsilon(node), x), "", "", total]


def embed_layer_normalization(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: the indices of words and of segments, three tables, scale, offset, a mask and the positions."""
    words, segments, table, places, kinds, gamma, beta, mask, positions = padded(node.input, 9)
    if not positions:
        positions = nodes.constant(np.arange(nodes.shape(words)[1])[None], np.int64)
    total = nodes.op("Add", nodes.op("Gather", table, words), nodes.op("Gather", places, positions))
    if segments:
        total = nodes.op("Add", total, nodes.op("Gather", kinds, segments))
    lengths = ""
    if len(node.output) > 1 and node.output[1]:
        lengths = _lengths(nodes, mask, nodes.shape(words)[0])
    return [layer_norm(nodes, total, gamma, beta, _epsilon(node), table), lengths, total]


def dynamic_quantize_matmul(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: a, which is quantised here, b, its scale, its zero point, and a bias. The last two may be left out."""
    a, b, b_scale, b_zero, bias = padded(node.input, 5)
    quantised, a_scale, a_zero = nodes.ops("DynamicQuantizeLinear", 3, a)
    return [_scaled_product(nodes, (quantised, b, a_zero, b_zero), (a_scale, b_scale), bias)]


def matmul_integer_to_float(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: a, b, their scales, their zero points, and a bias; the last three may be left out."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = padded(node.input, 7)
    return [_scaled_product(nodes, (a, b, a_zero, b_zero), (a_scale, b_scale), bias)]


def qlinear_add(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: a with scale and zero point, b with its own, and those of the result."""
    return [_quantised(nodes, nodes.op("Add", *_dequantised(nodes, node.input[:6])), node.input[6:])]


def qlinear_mul(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs as of `qlinear_add`."""
    return [_quantised(nodes, nodes.op("Mul", *_dequantised(nodes, node.input[:6])), node.input[6:])]


def qlinear_activation(node: NodeProto, nodes: Nodes) -> list[str]:
    """A function of one quantised input: x with scale and zero point, then those of the result."""
    return _of_one(node, nodes, attributes_of(node))


def qlinear_pool(node: NodeProto, nodes: Nodes) -> list[str]:
    """An average, global or over windows. Inputs as of `qlinear_activation`, channels first.

    Raises:
        ValueError: Channels are last.
    """
    attributes = attributes_of(node)
    if attributes.pop("channels_last", 0):
        raise ValueError("its channels are last, for which there is no rule")
    return _of_one(node, nodes, attributes)


def qlinear_softmax(node: NodeProto, nodes: Nodes) -> list[str]:
    """Softmax along an axis; up to opset 12 over all from the axis on. Inputs as of `qlinear_activation`."""
    attributes = attributes_of(node)
    old = int(attributes.pop("opset", 13)) < 13
    rank = len(nodes.shape(node.input[0]))
    if old and int(attributes.get("axis", 1)) % rank != rank - 1:
        raise ValueError("it is over several axes, for which there is no rule")
    return _of_one(node, nodes, {"axis": int(attributes.get("axis", 1 if old else -1))})


def _of_one(node: NodeProto, nodes: Nodes, attributes: Mapping[str, Any]) -> list[str]:
    """The operator of ONNX that an operator on one quantised input is named after."""
    x, x_scale, x_zero, y_scale, y_zero = padded(node.input, 5)
    (value,) = _dequantised(nodes, (x, x_scale, x_zero))
    kind = node.op_type.removeprefix("QLinear")
    return [_quantised(nodes, nodes.op(kind, value, **attributes), (y_scale, y_zero))]


def qlinear_concat(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: scale and zero point of the result, then each part with its own."""
    pieces = _dequantised(nodes, node.input[2:])
    joined = nodes.op("Concat", *pieces, axis=int(attributes_of(node)["axis"]))
    return [_quantised(nodes, joined, node.input[:2])]


def layer_norm(nodes: Nodes, x: str, gamma: str, beta: str, epsilon: float, like: str) -> str:
    """Normalise along the last axis; `like` is a value of the type of `x`."""
    if nodes.opset >= _LAYER_NORMALIZATION:
        return nodes.op("LayerNormalization", x, gamma, *([beta] if beta else []), axis=-1, epsilon=epsilon)
    centred = nodes.op("Sub", x, nodes.op("ReduceMean", x, axes=[-1], keepdims=1))
    scaled = divided_by_root_mean_square(nodes, centred, gamma, epsilon, like)
    return nodes.op("Add", scaled, beta) if beta else scaled


def divided_by_root_mean_square(nodes: Nodes, x: str, gamma: str, epsilon: float, like: str) -> str:
    """Divide by the root of the mean square along the last axis, and scale."""
    square = nodes.op("Mul", x, x)
    if nodes.opset < 18:
        mean = nodes.op("ReduceMean", square, axes=[-1], keepdims=1)
    else:
        mean = nodes.op("ReduceMean", square, nodes.constant([-1], np.int64), keepdims=1)
    root = nodes.op("Sqrt", nodes.op("Add", mean, nodes.constant_like(epsilon, like)))
    return nodes.op("Mul", nodes.op("Div", x, root), gamma)


def _scaled_product(nodes: Nodes, integers: Sequence[str], scales: Sequence[str], bias: str) -> str:
    """A product of integers around their zero points, in floats."""
    whole = nodes.op("MatMulInteger", *integers)
    scale = nodes.op("Mul", *scales)
    result = nodes.op("Mul", nodes.cast(whole, TensorProto.FLOAT), scale)
    return nodes.op("Add", result, bias) if bias else result


def _sum_of(nodes: Nodes, names: Sequence[str]) -> str:
    present = [name for name in names if name]
    total = present[0]
    for name in present[1:]:
        total = nodes.op("Add", total, name)
    return total


def _transposed(nodes: Nodes, name: str) -> str:
    """The value with its last two axes swapped; one of one axis stays."""
    rank = len(nodes.shape(name))
    order = list(range(rank))
    return nodes.op("Transpose", name, perm=[*order[:-2], *order[:-3:-1]]) if rank > 1 else name


def _lengths(nodes: Nodes, mask: str, batch: int) -> str:
    """How many entries of a mask are set in each row, as int32; 0 for each without one."""
    if not mask:
        return nodes.constant(np.zeros(batch), np.int32)
    return nodes.sum(mask, 1)


def _dequantised(nodes: Nodes, names: Sequence[str]) -> list[str]:
    """As floats: each three names are a value, its scale and its zero point, of which the last may be missing."""
    values = (names[first : first + 3] for first in range(0, len(names), 3))
    return [nodes.op("DequantizeLinear", *filter(None, value)) for value in values]


def _quantised(nodes: Nodes, value: str, scale_and_zero: Sequence[str]) -> str:
    return nodes.op("QuantizeLinear", value, *filter(None, scale_and_zero))


def _refuse_statistics(node: NodeProto) -> None:
    if any(node.output[1:3]):
        raise ValueError("its mean or deviation is read, for which there is no rule")


def _epsilon(node: NodeProto) -> float:
    return float(attributes_of(node).get("epsilon", 1e-12))


def padded(names: Sequence[str], count: int) -> list[str]:
    """The names of inputs, with empty ones for those left out at the end."""
    return [*names, *[""] * (count - len(names))]
