"""TVM's importer of ONNX, with the operators that it lacks and that cannot be written in terms of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

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
        Exception: Whatever TVM's converters raise.
    """
    return _Importer(dict(shapes), dict(dtypes)).from_onnx(proto.graph, opset_of(proto))


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    def _check_for_unsupported_ops(self, graph: GraphProto) -> None:
        others = onnx.GraphProto()
        others.node.extend(node for node in graph.node if node.op_type not in CONVERTERS)
        super()._check_for_unsupported_ops(others)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Expr:
        if op_name not in CONVERTERS:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        return CONVERTERS[op_name](self.bb, list(inputs), attrs)
