"""Attention as ONNX Runtime's transformer optimiser writes it, in products and a softmax.

Their meaning is that of ONNX Runtime's documentation (docs/ContribOperators.md). What a decoder remembers of earlier
steps is joined to the new keys and values. `GroupQueryAttention` is in `decoders.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from autotune.tvm_backend.models.onnx.operators.contrib import padded
from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, attributes_of
from autotune.tvm_backend.types import NodeProto

_MASKED = -10000.0  # what is added where a mask is 0


def attention(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: x, the weights and bias of query, key and value, a mask, the past keys and values, and scores to add.

    All from the mask on may be left out. Outputs: the result, and all keys and values so far, one behind the other.

    Raises:
        ValueError: Its past lies in a larger buffer, or it has a mask of a form for which there is no rule.
    """
    x, weights, bias, mask, past, added, length = padded(node.input, 7)
    _refuse_buffer(length)
    projected = nodes.op("MatMul", x, weights)
    of_projected = _Operands(nodes.op("Add", projected, bias) if bias else projected, mask, added)
    if past:
        shape = nodes.shape(past)
        halves = tuple(nodes.reshape(nodes.slice(past, 0, half, half + 1), shape[1:]) for half in (0, 1))
        of_projected = replace(of_projected, past=halves, earlier=shape[3])
    result, *present = _attend_projected(node, nodes, x, of_projected)
    if not any(node.output[1:]):
        return [result]
    front = nodes.constant([0], np.int64)
    return [result, nodes.op("Concat", *(nodes.op("Unsqueeze", part, front) for part in present), axis=0)]


def quantised_attention(node: NodeProto, nodes: Nodes) -> list[str]:
    """The same of 8-bit integers. Inputs: x, weights, bias, their two scales, a mask, two zero points.

    Raises:
        ValueError: As for `attention`.
    """
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = padded(node.input, 9)
    _refuse_past(past, *node.output[1:])
    whole = nodes.op("MatMulInteger", x, weights, x_zero, w_zero)
    product = nodes.op("Mul", nodes.cast(whole, TensorProto.FLOAT), nodes.op("Mul", x_scale, w_scale))
    return _attend_projected(node, nodes, x, _Operands(nodes.op("Add", product, bias), mask, ""))[:1]


def multi_head_attention(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: query, key, value, their bias, a mask of keys, scores to add, and past keys and values.

    All from the bias on may be left out. Outputs: the result, and all keys and values so far.

    Raises:
        ValueError: Its past lies in a larger buffer, it has packed or transposed inputs, or a mask without a rule.
    """
    query, key, value, bias, mask, added, *past = padded(node.input, 8)[:8]
    _refuse_buffer(*node.input[8:])
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
    earlier = nodes.shape(past[0])[2] if past[0] else 0
    operands = _Operands("", mask, added, tuple(filter(None, past)), earlier)
    return _attend(node, nodes, (query, key, value), shapes, operands)


@dataclass(frozen=True)
class _Operands:
    """What attention reads beside its heads.

    Attributes:
        projected: Query, key and value beside each other in the last axis.
        mask: Which keys are looked at; empty for all.
        added: What is added to the scores; empty for nothing.
        past: The keys and the values of earlier steps, (batch, heads, past, size) each; none where there are none.
        earlier: How many steps these are.
    """

    projected: str
    mask: str
    added: str
    past: tuple[str, ...] = ()
    earlier: int = 0


def _attend_projected(node: NodeProto, nodes: Nodes, x: str, operands: _Operands) -> list[str]:
    """Attention of query, key and value that lie beside each other in the last axis."""
    batch, steps, _ = nodes.shape(x)
    attributes = attributes_of(node)
    if attributes.get("do_rotary"):
        raise ValueError("it rotates positions, for which there is no rule")
    whole = nodes.shape(node.input[1])[1]
    sizes = [int(size) for size in attributes.get("qkv_hidden_sizes") or [whole // 3] * 3]
    ends = [0, sizes[0], sizes[0] + sizes[1], sum(sizes)]
    heads = [nodes.slice(operands.projected, 2, ends[index], ends[index + 1]) for index in range(3)]
    return _attend(node, nodes, heads, [(batch, steps, size) for size in sizes], operands)


def _attend(
    node: NodeProto,
    nodes: Nodes,
    projections: Sequence[str],
    shapes: Sequence[Sequence[int]],
    operands: _Operands,
) -> list[str]:
    """softmax(scale * Q K' + mask + added) V, by heads; then the keys and values so far.

    Args:
        node: The operator.
        nodes: What is written in its place.
        projections: Query, key and value, each (batch, steps, size).
        shapes: Theirs.
        operands: What else it reads.
    """
    attributes = attributes_of(node)
    heads = int(attributes["num_heads"])
    batch, steps, size = shapes[0]
    keys = shapes[1][1] + operands.earlier
    scale = float(attributes.get("scale") or 1 / math.sqrt(size // heads))
    is_kept = bool(operands.past) or any(node.output[1:])
    by_element = [0, 2, 1, 3] if is_kept else [0, 2, 3, 1]
    query, key, value = (
        by_heads(nodes, part, shape, heads, order)
        for part, shape, order in zip(projections, shapes, ([0, 2, 1, 3], by_element, [0, 2, 1, 3]), strict=True)
    )
    if operands.past:
        key, value = (nodes.op("Concat", *both, axis=2) for both in zip(operands.past, (key, value), strict=True))
    present = [key, value] if is_kept else []
    key = nodes.op("Transpose", key, perm=[0, 1, 3, 2]) if is_kept else key
    scores = nodes.op("Mul", nodes.op("MatMul", query, key), nodes.constant(scale))
    filtered = float(attributes.get("mask_filter_value", _MASKED))
    if operands.mask:
        scores = nodes.op("Add", scores, _added_of_mask(nodes, operands.mask, batch, keys, filtered))
    if attributes.get("unidirectional"):
        later = np.triu(np.full((steps, keys), filtered), 1 + keys - steps)
        scores = nodes.op("Add", scores, nodes.constant(later))
    if operands.added:
        scores = nodes.op("Add", scores, operands.added)
    result = nodes.op("MatMul", nodes.op("Softmax", scores, axis=-1), value)
    return [side_by_side(nodes, result, (batch, steps, shapes[2][2])), *present]


def by_heads(nodes: Nodes, x: str, shape: Sequence[int], heads: int, order: Sequence[int] = (0, 2, 1, 3)) -> str:
    """(batch, steps, heads * size), which is the shape, as (batch, heads, steps, size), or in another order."""
    batch, steps, width = shape
    return nodes.op("Transpose", nodes.reshape(x, (batch, steps, heads, width // heads)), perm=list(order))


def side_by_side(nodes: Nodes, heads: str, shape: Sequence[int]) -> str:
    """(batch, heads, steps, size) as (batch, steps, heads * size), which is the shape."""
    return nodes.reshape(nodes.op("Transpose", heads, perm=[0, 2, 1, 3]), shape)


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


def _refuse_past(*names: str) -> None:
    if any(names):
        raise ValueError("it keeps what its steps computed, for which there is no rule")


def _refuse_buffer(*inputs: str) -> None:
    if any(inputs):
        raise ValueError("its earlier steps lie in a larger buffer, for which there is no rule")
