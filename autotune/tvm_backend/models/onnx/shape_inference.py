"""The types and shapes that inference finds in a graph, for which it is not given large weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import onnx

from autotune.tvm_backend.types import GraphProto, ModelProto, TensorProto

_LARGE = 1 << 14  # elements: no list of sizes, axes or parts, which inference reads, has as many


def infer_shapes(proto: ModelProto, *, data_prop: bool = True) -> GraphProto:
    """A graph with what inference finds, in which large weights lack their values. `proto` stays as it is.

    Inference would write the model to memory, read it, and copy it back, all with its weights.

    Args:
        data_prop: Whether small values are computed, too, where they decide about shapes.

    Raises:
        Exception: Whatever inference raises at a malformed graph.
    """
    return onnx.shape_inference.infer_shapes(without_values(proto), data_prop=data_prop).graph


def inferred_tensors(proto: ModelProto) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """The shapes that are known as a whole, and the element types, by the names of tensors of a graph."""
    graph = infer_shapes(proto)
    shapes = {item.name: tuple(item.dims) for item in proto.graph.initializer}
    types = {item.name: item.data_type for item in proto.graph.initializer}
    for item in (*graph.input, *graph.value_info, *graph.output):
        tensor = item.type.tensor_type
        types[item.name] = tensor.elem_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[item.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes, types


def without_values(proto: ModelProto) -> ModelProto:
    """A copy of a graph whose large weights have a type and sizes, and no values."""
    light = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    light.graph.name = proto.graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, field).extend(getattr(proto.graph, field))
    light.graph.initializer.extend(map(_light, proto.graph.initializer))
    return light


def is_large_weight(weight: TensorProto) -> bool:
    """Whether a weight has more elements than what decides about shapes."""
    elements: int = math.prod(weight.dims)
    return elements > _LARGE


def small_constants(graph: GraphProto) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The constants that are no large weights, by name."""
    for item in graph.initializer:
        if not is_large_weight(item):
            yield item.name, onnx.numpy_helper.to_array(item)
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                yield node.output[0], onnx.numpy_helper.to_array(attribute.t)


def _light(weight: TensorProto) -> TensorProto:
    if not is_large_weight(weight):
        return weight
    return onnx.TensorProto(name=weight.name, data_type=weight.data_type, dims=weight.dims)
