"""A quantised ONNX graph without its roundings: the same weights and ranges, computed in float32.

Every tensor of integers becomes one of floats with the same numbers, only not rounded, so that what moves or picks
integers stays as it is. What the runtime computes of the result is nearer to what the model means than its integers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto

from autotune.errors import ModelError
from autotune.tvm_backend.models.onnx.operators.contrib import padded
from autotune.tvm_backend.models.onnx.operators.lower import CONTRIB, RUNTIME_DOMAIN, Rule, replace
from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, attributes_of
from autotune.tvm_backend.models.onnx.simplify import nodes_of
from autotune.tvm_backend.types import ModelProto, NodeProto

_IN_FLOAT32 = 1  # ONNX Runtime's `accuracy_level`, by which it computes without rounding what is multiplied
_RANGES = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-(1 << 15), (1 << 15) - 1),
    TensorProto.UINT16: (0, (1 << 16) - 1),
}
_SUMS = ("ConvInteger", "MatMulInteger")
_ROUND_IN_PARTS = frozenset(  # operators of ONNX Runtime's own that are written as others, which round
    {"DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention"}
    | {kind for kind in CONTRIB if kind.startswith("QLinear")}
)


def in_floats(proto: ModelProto) -> ModelProto | None:
    """Return what a graph computes if nothing is rounded to integers; None if it has none, or one without a rule here.

    Values are still cut off at the ends of what the integers hold, for that is how activations are expressed.

    Args:
        proto: The graph, with the shapes of its inputs.
    """
    if not any(map(_rounds, nodes_of(proto))):
        return None
    try:
        graph = replace(proto, _in_parts)
        graph = replace(graph, partial(_rule, _Known.of(graph)))
    except ModelError:
        return None
    del graph.graph.value_info[:]  # what they say of types is no longer so
    left = {node.op_type for node in nodes_of(graph) if _rounds(node)}
    return graph if left <= {"DequantizeLinear", "MatMulNBits"} else None  # which compute in floats, or are constants


def _rounds(node: NodeProto) -> bool:
    """Whether an operator takes or makes integers that stand for other numbers."""
    return node.op_type in _FLOAT_RULES or node.op_type in _ROUND_IN_PARTS or "Quantize" in node.op_type


def _in_parts(node: NodeProto) -> Rule | None:
    is_one = node.domain == RUNTIME_DOMAIN and node.op_type in _ROUND_IN_PARTS
    return CONTRIB[node.op_type] if is_one else None


@dataclass(frozen=True)
class _Known:
    """What is known of the values of a graph: which are constants, which operator makes each of the others."""

    constants: Collection[str]
    makers: Mapping[str, NodeProto]

    @classmethod
    def of(cls, proto: ModelProto) -> _Known:
        """Return it of a graph."""
        nodes = proto.graph.node
        constants = {item.name for item in proto.graph.initializer}
        constants |= {name for node in nodes if node.op_type == "Constant" for name in node.output}
        return cls(constants, {name: node for node in nodes for name in node.output})

    def kind(self, name: str) -> str:
        """Return the operator that makes a value; empty for none."""
        return self.makers[name].op_type if name in self.makers else ""

    def unrounded(self, name: str) -> str:
        """Return the value that a value is rounded from, or itself."""
        while self.kind(name) in ("Cast", "Floor", "Round"):
            name = self.makers[name].input[0]
        return name


def _rule(known: _Known, node: NodeProto) -> Rule | None:
    if node.op_type == "DequantizeLinear" and node.input[0] in known.constants:
        return None
    if node.op_type == "Add" and any(known.kind(name) in _SUMS for name in node.input):
        return partial(_biased, known)
    return _FLOAT_RULES.get(node.op_type)


def _biased(known: _Known, node: NodeProto, nodes: Nodes) -> list[str]:
    """Integers that are added to sums of integers, such as a bias in the unit of the sums, but not rounded."""
    return [nodes.op("Add", *(nodes.cast(known.unrounded(name), TensorProto.FLOAT) for name in node.input))]


def _quantised(node: NodeProto, nodes: Nodes) -> list[str]:
    x, scale, zero = padded(node.input, 3)
    attributes = attributes_of(node)
    _refuse_blocks(attributes)
    kind = nodes.dtype(zero) if zero else attributes.get("output_dtype") or TensorProto.UINT8
    return [_levels(nodes, x, (scale, zero), kind, int(attributes.get("axis", 1)))]


def _levels(nodes: Nodes, x: str, step: Sequence[str], kind: int, axis: int = 1) -> str:
    """The integers that a float becomes, but not rounded. `step` are the scale and the zero point."""
    if kind not in _RANGES:
        raise ValueError("it is quantised to another type, for which there is no rule")
    scale, zero = (_along(nodes, name, x, axis) for name in step)
    level = nodes.op("Div", x, scale)
    return nodes.clip(nodes.op("Add", level, zero) if zero else level, *_RANGES[kind])


def _dequantised(node: NodeProto, nodes: Nodes) -> list[str]:
    attributes = attributes_of(node)
    _refuse_blocks(attributes)
    x, scale, zero = padded(node.input, 3)
    return [_values(nodes, x, scale, zero, int(attributes.get("axis", 1)))]


def _values(nodes: Nodes, x: str, scale: str, zero: str, axis: int) -> str:
    """The floats that integers stand for."""
    return nodes.op("Mul", _centred(nodes, x, zero, axis), _along(nodes, scale, x, axis))


def _centred(nodes: Nodes, x: str, zero: str, axis: int) -> str:
    wide = nodes.cast(x, TensorProto.FLOAT)
    return nodes.op("Sub", wide, _along(nodes, zero, x, axis)) if zero else wide


def _along(nodes: Nodes, name: str, x: str, axis: int) -> str:
    """A scale or a zero point as floats, in a shape that fits `x`: one number, or one for each place along the axis."""
    if not name:
        return ""
    size = int(np.prod(nodes.shape(name)))
    rank = len(nodes.shape(x)) if size > 1 else 1
    shape = [size if place == axis % rank else 1 for place in range(rank)] if size > 1 else []
    return nodes.cast(nodes.reshape(name, shape), TensorProto.FLOAT)


def _dynamic(node: NodeProto, nodes: Nodes) -> list[str]:
    """The floats themselves stand for their integers, with a scale of 1."""
    return [node.input[0], nodes.constant(1), nodes.constant(0)]


def _matmul_integer(node: NodeProto, nodes: Nodes) -> list[str]:
    a, b, a_zero, b_zero = padded(node.input, 4)
    return [nodes.op("MatMul", _centred(nodes, a, a_zero, -2), _centred(nodes, b, b_zero, -1))]


def _conv_integer(node: NodeProto, nodes: Nodes) -> list[str]:
    x, w, x_zero, w_zero = padded(node.input, 4)
    operands = _centred(nodes, x, x_zero, 1), _centred(nodes, w, w_zero, 0)
    return [nodes.op("Conv", *operands, **attributes_of(node))]


def _qlinear_conv(node: NodeProto, nodes: Nodes) -> list[str]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = padded(node.input, 9)
    operands = [_values(nodes, x, x_scale, x_zero, 1), _values(nodes, w, w_scale, w_zero, 0)]
    if bias:
        unit = nodes.op("Mul", nodes.reshape(x_scale, [-1]), nodes.reshape(w_scale, [-1]))
        operands.append(nodes.op("Mul", nodes.cast(bias, TensorProto.FLOAT), unit))
    result = nodes.op("Conv", *operands, **attributes_of(node))
    return [_levels(nodes, result, (y_scale, y_zero), nodes.dtype(y_zero))]


def _qlinear_matmul(node: NodeProto, nodes: Nodes) -> list[str]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = padded(node.input, 8)
    product = nodes.op("MatMul", _values(nodes, a, a_scale, a_zero, -2), _values(nodes, b, b_scale, b_zero, -1))
    return [_levels(nodes, product, (y_scale, y_zero), nodes.dtype(y_zero))]


def _lstm(node: NodeProto, nodes: Nodes) -> list[str]:
    """An LSTM whose inputs are quantised as it runs, and whose weights are, in columns."""
    x, w, r, *states, w_scale, w_zero, r_scale, r_zero = padded(node.input, 12)
    weights = [_columns(nodes, w, w_scale, w_zero), _columns(nodes, r, r_scale, r_zero)]
    return nodes.ops("LSTM", 3, x, *weights, *states, **attributes_of(node))


def _columns(nodes: Nodes, weight: str, scale: str, zero: str) -> str:
    """The weights of an LSTM in rows, as floats. There is a scale for each direction, or for each of its columns."""
    directions = nodes.shape(weight)[0]
    wide, unit, point = (nodes.cast(name, TensorProto.FLOAT) for name in (weight, scale, zero))
    unit, point = (nodes.reshape(name, [directions, 1, -1]) for name in (unit, point))
    return nodes.op("Transpose", nodes.op("Mul", nodes.op("Sub", wide, point), unit), perm=[0, 2, 1])


def _n_bits(node: NodeProto, nodes: Nodes) -> list[str]:
    """The same operator, which multiplies floats where it is asked for them."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    kept = [item for item in node.attribute if item.name != "accuracy_level"]
    del copy.attribute[:]
    copy.attribute.extend([*kept, onnx.helper.make_attribute("accuracy_level", _IN_FLOAT32)])
    copy.output[0] = f"{nodes.prefix}.floats"
    nodes.written.append(copy)
    return [copy.output[0]]


def _refuse_blocks(attributes: Mapping[str, object]) -> None:
    if attributes.get("block_size"):
        raise ValueError("it is in blocks, for which there is no rule")


_FLOAT_RULES: Mapping[str, Callable[[NodeProto, Nodes], list[str]]] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantised,
    "DynamicQuantizeLSTM": _lstm,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _matmul_integer,
    "MatMulNBits": _n_bits,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantised,
}
