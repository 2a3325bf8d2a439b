"""Compute a graph of float16 in float32, as ONNX Runtime does on CPUs.

CPUs convert each float16 number to compute with it. So float32 is faster there, and a sum is not rounded at each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx

from autotune.tvm_backend.models.onnx.operators.inline import rename
from autotune.tvm_backend.models.onnx.simplify import graphs
from autotune.tvm_backend.types import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

_FLOAT = onnx.TensorProto.FLOAT
_HALF = onnx.TensorProto.FLOAT16
_ELEMENT_TYPES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})  # attributes that name one


def has_halves(proto: ModelProto) -> bool:
    """Whether a graph has float16 inputs or constants, or converts to float16."""
    ends = (item.type.tensor_type.elem_type for item in proto.graph.input)
    return _HALF in ends or any(True for _ in _tensors(proto)) or any(True for _ in _types(proto))


def widen(proto: ModelProto) -> ModelProto:
    """A graph that computes the same in float32, with inputs and outputs of the same types. `proto` stays as it is."""
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    for tensor in _tensors(wide):
        values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for attribute in _types(wide):
        attribute.i = _FLOAT
    for graph in graphs(wide.graph):
        del graph.value_info[:]
    _widen_bodies(wide.graph)
    _convert_ends(wide.graph)
    return wide


def _tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """The float16 constants of a graph, also those in attributes and in graphs inside it."""
    initializers = [item for graph in graphs(proto.graph) for item in graph.initializer]
    attributes = [item.t for node in _nodes(proto) for item in node.attribute if item.HasField("t")]
    return (item for item in (*initializers, *attributes) if item.data_type == _HALF)


def _types(proto: ModelProto) -> Iterator[AttributeProto]:
    """The attributes that name float16 as an element type."""
    attributes = (item for node in _nodes(proto) for item in node.attribute)
    return (item for item in attributes if item.name in _ELEMENT_TYPES and item.i == _HALF)


def _nodes(proto: ModelProto) -> Iterator[NodeProto]:
    for owner in (proto.graph, *proto.functions):
        for graph in graphs(owner):
            yield from graph.node


def _widen_bodies(graph: GraphProto) -> None:
    """Give the inputs and outputs of the graphs inside a graph the type that their values have now."""
    for inner in graphs(graph):
        for item in (*inner.input, *inner.output) if inner is not graph else ():
            _retype(item)


def _retype(item: ValueInfoProto) -> None:
    if item.type.tensor_type.elem_type == _HALF:
        item.type.tensor_type.elem_type = _FLOAT


def _convert_ends(graph: GraphProto) -> None:
    """Convert float16 inputs before anything reads them, and what are float16 outputs after all else."""
    weights = {item.name for item in graph.initializer}
    for item in graph.input:
        if item.name in weights:  # files before IR version 4 list them as inputs, too
            _retype(item)
    inputs = _halves(graph.input)
    outputs = _halves(graph.output)
    names = {name: f"{name}.float32" for name in (*inputs, *outputs)}
    for node in graph.node:
        rename(node, names)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    nodes = [onnx.helper.make_node("Cast", [name], [names[name]], to=_FLOAT) for name in inputs]
    nodes += list(graph.node)
    nodes += [onnx.helper.make_node("Cast", [names[name]], [name], to=_HALF) for name in outputs if name not in inputs]
    del graph.node[:]
    graph.node.extend(nodes)


def _halves(items: Iterable[ValueInfoProto]) -> list[str]:
    return [item.name for item in items if item.type.tensor_type.elem_type == _HALF]
