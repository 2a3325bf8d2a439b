"""TVM's importer of ONNX, with the operators that it lacks and that cannot be written in terms of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx
import tvm
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from autotune.errors import ModelError, first_line, one_line
from autotune.tvm_backend.models.onnx.operators.nodes import opset_of
from autotune.tvm_backend.recurrent.layer import GATES, Kind
from autotune.tvm_backend.recurrent.operators import dynamic_lstm, recurrent
from autotune.tvm_backend.types import Expr, GraphProto, IRModule, ModelProto

# Emits an operator: from the builder, its inputs and its attributes to its outputs.
Converter = Callable[..., Expr]


def _recurrent(kind: Kind) -> Converter:
    return lambda builder, inputs, attributes: recurrent(builder, kind, inputs, attributes)


CONVERTERS: Mapping[str, Converter] = {
    **{kind: _recurrent(kind) for kind in GATES},
    "DynamicQuantizeLSTM": dynamic_lstm,
}


def import_graph(proto: ModelProto, shapes: Mapping[str, list[int]], dtypes: Mapping[str, str]) -> IRModule:
    """Import a graph.

    Args:
        proto: The model.
        shapes: Of its inputs by name.
        dtypes: Of its inputs by name.

    Raises:
        tvm.error.OpNotImplemented: It has operators that are not supported.
        ModelError: An operator is not taken in its form; one line with its inputs and what to do.
        Exception: Whatever TVM's converters raise.
    """
    return _Importer(dict(shapes), dict(dtypes)).from_onnx(proto.graph, opset_of(proto))


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    def _check_for_unsupported_ops(self, graph: GraphProto) -> None:
        others = onnx.GraphProto()
        others.node.extend(node for node in graph.node if node.op_type not in CONVERTERS)
        super()._check_for_unsupported_ops(others)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Expr:
        try:
            if op_name not in CONVERTERS:
                return super()._convert_operator(op_name, inputs, attrs, opset)
            return CONVERTERS[op_name](self.bb, list(inputs), attrs)
        except ModelError:
            raise  # from an operator inside this one
        except Exception as error:  # whatever converters stumble over
            name = str(attrs.get("tvm_custom", {}).get("name", ""))
            raise ModelError(_refusal(op_name, name, opset, inputs, error)) from error


def _refusal(kind: str, name: str, opset: int, inputs: Iterable[Any], error: Exception) -> str:
    """One line: the operator, what it is given, why it is not taken, and what to do."""
    given = ", ".join("none" if item is None else one_line(str(item.ty)) for item in inputs)
    plain = isinstance(error, AssertionError | ValueError | NotImplementedError | tvm.error.OpNotImplemented)
    reason = first_line(error) if plain and str(error) else f"its importer fails with {type(error).__name__}"
    if not plain and str(error):
        reason += f" ({first_line(error)})"
    advice = "export it in another form, or see docs/guides/models.md"
    return f"operator {kind} {name!r} (opset {opset}, inputs: {given}) is not taken by TVM: {reason}; {advice}"
