"""Powers of integers, and of a base and an exponent with different types, which ONNX allows and TVM does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.tvm_backend.graph.operators.nodes import Nodes, Value


def is_unfit(node: Any, values: Mapping[str, Value]) -> bool:
    """Whether an operator is a power that TVM does not compute.

    Args:
        node: The operator.
        values: What is known about the values of the graph.
    """
    types = {values[name].dtype for name in node.input if name in values}
    return node.op_type == "Pow" and (len(types) > 1 or not all(map(_is_float, types)))


def power(node: Any, nodes: Nodes) -> list[str]:
    """Write a power of floats of one type. The result has the type of the base, as ONNX says."""
    from onnx import TensorProto

    own, other = map(nodes.dtype, node.input)
    common = next(filter(_is_float, (own, other)), TensorProto.DOUBLE)
    base, exponent = (_as(nodes, name, nodes.dtype(name), common) for name in node.input)
    return [_as(nodes, nodes.op("Pow", base, exponent), common, own)]


def _as(nodes: Nodes, name: str, dtype: int, wanted: int) -> str:
    return name if dtype == wanted else nodes.cast(name, wanted)


def _is_float(dtype: int) -> bool:
    from onnx import TensorProto

    return dtype in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
