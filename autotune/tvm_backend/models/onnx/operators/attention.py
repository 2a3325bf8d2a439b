"""Attention as ONNX Runtime's transformer optimiser writes it, in products and a softmax.

Their meaning is that of ONNX Runtime's documentation (docs/ContribOperators.md). What a decoder remembers of earlier
steps (`past`) has no rule here; `GroupQueryAttention` in `decoders.py` has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from autotune.tvm_backend.models.onnx.operators.contrib import padded
from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, attributes_of
from autotune.tvm_backend.types import NodeProto

_MASKED = -10000.0  # what is added where a mask is 0


def attention(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: x, the weights and bias of query, key and value, and a mask and scores to add, which may be left out.

    Raises:
        ValueError: It has inputs of earlier steps, or a mask of a form for which there is no rule.
    """
    x, weights, bias, mask, past, added, length = padded(node.input, 7)
    _refuse_past(past, length)
    projected = nodes.op("MatMul", x, weights)
    return _attend_projected(node, nodes, nodes.op("Add", projected, bias) if bias else projected, x, mask, added)


def quantised_attention(node: NodeProto, nodes: Nodes) -> list[str]:
    """The same of 8-bit integers. Inputs: x, weights, bias, their two scales, a mask, two zero points.

    Raises:
        ValueError: As for `attention`.
    """
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = padded(node.input, 9)
    _refuse_past(past)
    whole = nodes.op("MatMulInteger", x, weights, x_zero, w_zero)
    product = nodes.op("Mul", nodes.cast(whole, TensorProto.FLOAT), nodes.op("Mul", x_scale, w_scale))
    return _attend_projected(node, nodes, nodes.op("Add", product, bias), x, mask, "")


def multi_head_attention(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: query, key, value, their bias, a mask of keys, and scores to add; the last three may be left out.

    Raises:
        ValueError: It has inputs of earlier steps, packed or transposed ones, or a mask without a rule.
    """
    query, key, value, bias, mask, added = padded(node.input, 6)[:6]
    _refuse_past(*node.input[6:])
    if not key or not value or any(len(nodes.shape(name)) != 3 for name in (query, key, value)):
        raise ValueError("its keys or values are packed, for which there is no rule")
    if bias:
        sizes = [nodes.shape(name)[2] for name in (query, key, value)]
        ends = np.cumsum([0, *sizes])
        biases = [nodes.slice(bias, 0, int(ends[index]), int(ends[index + 1])) for index in range(3)]
        query, key, value = (
            nodes.op("Add", name, part) for name, part in zip((query, key, value), biases, strict=True)
        )
    shapes = [nodes.shape(name) for name in node.input[:3]]
    return _attend(node, nodes, (query, key, value), shapes, mask, added)


def _attend_projected(node: NodeProto, nodes: Nodes, projected: str, x: str, mask: str, added: str) -> list[str]:
    """Attention of query, key and value that lie beside each other in the last axis."""
    batch, steps, _ = nodes.shape(x)
    attributes = attributes_of(node)
    if attributes.get("do_rotary"):
        raise ValueError("it rotates positions, for which there is no rule")
    whole = nodes.shape(node.input[1])[1]
    sizes = [int(size) for size in attributes.get("qkv_hidden_sizes") or [whole // 3] * 3]
    ends = [0, sizes[0], sizes[0] + sizes[1], sum(sizes)]
    heads = [nodes.slice(projected, 2, ends[index], ends[index + 1]) for index in range(3)]
    return _attend(node, nodes, heads, [(batch, steps, size) for size in sizes], mask, added)


def _attend(
    node: NodeProto, nodes: Nodes, projections: Sequence[str], shapes: Sequence[Sequence[int]], mask: str, added: str
) -> list[str]:
    """softmax(scale * Q K' + mask + added) V, by heads.

    Args:
        node: The operator.
        nodes: What is written in its place.
        projections: Query, key and value, each (batch, steps, size).
        mask: Which keys are looked at; empty for all.
        added: What is added to the scores; empty for nothing.
    """
    if any(node.output[1:]):
        raise ValueError("it gives its keys and values to later steps, for which there is no rule")
    attributes = attributes_of(node)
    heads = int(attributes["num_heads"])
    batch, steps, size = shapes[0]
    keys = shapes[1][1]
    scale = float(attributes.get("scale") or 1 / math.sqrt(size // heads))
    query, key, value = (
        nodes.op("Transpose", nodes.reshape(part, (*shape[:2], heads, shape[2] // heads)), perm=order)
        for part, shape, order in zip(projections, shapes, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scores = nodes.op("Mul", nodes.op("MatMul", query, key), nodes.constant(scale))
    filtered = float(attributes.get("mask_filter_value", _MASKED))
    if mask:
        scores = nodes.op("Add", scores, _added_of_mask(nodes, mask, batch, keys, filtered))
    if attributes.get("unidirectional"):
        later = np.triu(np.full((steps, keys), filtered), 1 + keys - steps)
        scores = nodes.op("Add", scores, nodes.constant(later))
    if added:
        scores = nodes.op("Add", scores, added)
    result = nodes.op("MatMul", nodes.op("Softmax", scores, axis=-1), value)
    return [nodes.reshape(nodes.op("Transpose", result, perm=[0, 2, 1, 3]), (batch, steps, shapes[2][2]))]


def _added_of_mask(nodes: Nodes, mask: str, batch: int, keys: int, filtered: float) -> str:
    """What a mask adds to scores. It has a length for each row, or a 1 for each key that is looked at.

    Raises:
        ValueError: It has another form.
    """
    shape = nodes.shape(mask)
    if shape == (batch,):
        numbers = nodes.constant(np.arange(keys)[None], np.int64)
        lengths = nodes.reshape(nodes.cast(mask, TensorProto.INT64), (batch, 1))
        seen = nodes.reshape(nodes.op("Less", numbers, lengths), (batch, 1, 1, keys))
    elif len(shape) in (2, 3, 4) and shape[0] == batch and shape[-1] == keys:
        middle = {2: (1, 1), 3: (1, *shape[1:2]), 4: shape[1:3]}[len(shape)]
        seen = nodes.reshape(nodes.cast(mask, TensorProto.BOOL), (batch, *middle, keys))
    else:
        raise ValueError(f"a mask of {'x'.join(map(str, shape))} for {batch} rows of {keys} keys has no rule")
    return nodes.op("Where", seen, nodes.constant(0.0), nodes.constant(filtered))


def _refuse_past(*inputs: str) -> None:
    if any(inputs):
        raise ValueError("it reads what earlier steps computed, for which there is no rule")
