"""Operators that scale their input."""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.tvm_backend.graph.operators.nodes import Nodes, attributes_of


def scaler(node: Any, nodes: Nodes) -> list[str]:
    """Subtract an offset from each feature and multiply it by a scale (ai.onnx.ml)."""
    attributes = attributes_of(node)
    value = nodes.cast(node.input[0], 1)
    shifted = nodes.op("Sub", value, nodes.constant(attributes.get("offset") or [0.0]))
    return [nodes.op("Mul", shifted, nodes.constant(attributes.get("scale") or [1.0]))]


def lp_normalization(node: Any, nodes: Nodes) -> list[str]:
    """Divide by the sum of absolute values, or by the root of the sum of squares, along an axis; 0 where that is 0."""
    attributes = attributes_of(node)
    x, axis = node.input[0], int(attributes.get("axis", -1))
    rank = len(nodes.shape(x))
    if int(attributes.get("p", 2)) == 1:
        length = _sum(nodes, nodes.op("Abs", x), axis % rank)
    else:
        length = nodes.op("Sqrt", _sum(nodes, nodes.op("Mul", x, x), axis % rank))
    zero = nodes.op("Equal", length, nodes.constant_like(0, x))
    return [nodes.op("Div", x, nodes.op("Where", zero, nodes.constant_like(1, x), length))]


def _sum(nodes: Nodes, x: str, axis: int) -> str:
    if nodes.opset < 13:
        return nodes.op("ReduceSum", x, axes=[axis], keepdims=1)
    return nodes.op("ReduceSum", x, nodes.constant([axis], np.int64), keepdims=1)
