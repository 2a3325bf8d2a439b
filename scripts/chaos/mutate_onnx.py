"""Small ONNX models of many kinds, and what may go wrong in a model file. For `fuzz_models.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

Rng = np.random.Generator
_NODE = helper.make_node
_NUMBERS = (0, -1, 1, 2, 3, 7, 255, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1)
_LOOP = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] y, float[n,4] rows)
    <int64 nine = {9}, bool true = {1}, float half = {0.5}, int64[1] first = {0}> {
        y, rows = Loop(nine, true, x) <body = b (int64 i, bool c, float[2,4] h)
            => (bool go, float[2,4] h2, float[4] row) {
            h2 = Mul(h, half) row = ReduceSum<keepdims = 0>(h2, first) s = ReduceMax<keepdims = 0>(h2)
            go = Greater(s, half) }> }"""
_UNIQUE = """<ir_version: 8, opset_import: ["" : 17]> g (float[6,3] x) => (float[n,3] y, int64[6] group)
    { r = Round(x) y, first, group = Unique<axis = 0>(r) }"""
_OPERATORS = (
    "Add", "Concat", "Conv", "Cast", "Gather", "Gemm", "If", "Loop", "MatMul", "MaxPool", "Pad", "Reshape", "Resize",
    "Slice", "Softmax", "Split", "Transpose", "Where", "Frobnicate", "", "\x1b[2J", "../../etc/passwd",
)  # fmt: skip


def _weights(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape), name)


def _ints(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _model(nodes: Sequence[Any], shape: Sequence[int], constants: Sequence[Any] = (), opset: int = 17) -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", [x], [y], initializer=list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _branch(name: str, operator: str) -> Any:
    y = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])
    return helper.make_graph([_NODE(operator, ["x"], [name])], name, [], [y])


def seeds() -> list[Any]:
    """Small sound models: convolutions, matrices, shapes, a reduction, a lookup, a branch, and what the data decide."""
    convolution = [
        _NODE("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        _NODE("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"]),
        _NODE("Relu", ["n"], ["r"]),
        _NODE("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    variance = numpy_helper.from_array(np.ones(4, np.float32), "v")
    dense = [_NODE("Gemm", ["x", "w", "b"], ["h"]), _NODE("Softmax", ["h"], ["y"], axis=-1)]
    shapes = [
        _NODE("Reshape", ["x", "s"], ["a"]),
        _NODE("Transpose", ["a"], ["t"], perm=[1, 0]),
        _NODE("Slice", ["t", "from", "to"], ["c"]),
        _NODE("Concat", ["c", "c"], ["y"], axis=0),
    ]
    reduced = [_NODE("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1), _NODE("Sub", ["x", "m"], ["y"])]
    lookup = [_NODE("Cast", ["x"], ["i"], to=TensorProto.INT64), _NODE("Gather", ["w", "i"], ["y"])]
    branch = _NODE("If", ["q"], ["y"], then_branch=_branch("p", "Relu"), else_branch=_branch("e", "Neg"))
    truth = numpy_helper.from_array(np.array(True), "q")
    return [
        _model(convolution, (1, 3, 8, 8), [_weights("w", 4, 3, 3, 3), _weights("b", 4), variance]),
        _model(dense, (2, 8), [_weights("w", 8, 4), _weights("b", 4)]),
        _model(shapes, (2, 3, 4), [_ints("s", 6, 4), _ints("from", 0, 0), _ints("to", 2, 6)]),
        _model(reduced, (2, 8)),
        _model(lookup, (2, 3), [_weights("w", 5, 4)]),
        _model([branch], (1, 4), [truth]),
        *map(onnx.parser.parse_model, (_LOOP, _UNIQUE)),
    ]


def mutant(parents: Sequence[Any], rng: Rng) -> bytes:
    """The bytes of a model file with one to four things wrong: two thirds in the graph, the others in the bytes."""
    proto = onnx.ModelProto()
    proto.CopyFrom(parents[rng.integers(len(parents))])
    if rng.random() < 1 / 3:
        return _bytes(proto.SerializeToString(), rng)
    for _ in range(rng.integers(1, 5)):
        _choose(_GRAPH, rng)(proto, rng)
    return bytes(proto.SerializeToString())


def _bytes(data: bytes, rng: Rng) -> bytes:
    for _ in range(rng.integers(1, 5)):
        if data:
            data = _choose(_BYTES, rng)(data, rng)
    return data


def _choose(items: Sequence[Any], rng: Rng) -> Any:
    return items[rng.integers(len(items))]


def _any(items: Any, rng: Rng) -> Any:
    """One of a repeated field's messages, or None where it has none."""
    return items[int(rng.integers(len(items)))] if len(items) else None


def _flip(data: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]


def _cut(data: bytes, rng: Rng) -> bytes:
    return data[: rng.integers(len(data))]


def _zeros(data: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + bytes(min(16, len(data) - at)) + data[at + 16 :]


def _repeat(data: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(data)))
    length = int(rng.integers(1, 64))
    return data[:at] + data[at : at + length] + data[at:]


def _noise(data: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + rng.bytes(8) + data[at + 8 :]


def _shape(proto: Any, rng: Rng) -> None:
    value = _any([*proto.graph.input, *proto.graph.output], rng)
    dims = value.type.tensor_type.shape.dim if value is not None else []
    dim = _any(dims, rng)
    if dim is None or rng.random() < 0.2:
        proto.graph.input.add().CopyFrom(helper.make_tensor_value_info("extra", TensorProto.FLOAT, [1, 4]))
    elif rng.random() < 0.2:
        dim.dim_param = "batch"
    else:
        dim.dim_value = _choose(_NUMBERS, rng)


def _dtype(proto: Any, rng: Rng) -> None:
    number = int(rng.integers(-1, 30))
    if len(proto.graph.initializer) and rng.random() < 0.5:
        _any(proto.graph.initializer, rng).data_type = number
    elif len(proto.graph.input):
        _any(proto.graph.input, rng).type.tensor_type.elem_type = number


def _edge(proto: Any, rng: Rng) -> None:
    """An operator reads something else: nothing, its own output, another's, what nobody makes."""
    node = _any(proto.graph.node, rng)
    if node is None:
        return
    edges = [name for item in proto.graph.node for name in [*item.input, *item.output]]
    name = _choose([*edges, "", "nowhere", "x" * 10_000, "a/../b", "\n", *node.output], rng)
    ends = node.input if rng.random() < 0.7 else node.output
    if len(ends) and rng.random() < 0.8:
        ends[int(rng.integers(len(ends)))] = name
    else:
        ends.append(name)


def _operator(proto: Any, rng: Rng) -> None:
    node = _any(proto.graph.node, rng)
    if node is not None:
        node.op_type = _choose(_OPERATORS, rng)
        node.domain = _choose(("", "", "", "my.domain", "ai.onnx.ml"), rng)


def _attribute(proto: Any, rng: Rng) -> None:
    node = _any(proto.graph.node, rng)
    if node is None:
        return
    values: tuple[Any, ...] = (*_NUMBERS, 0.5, "text", [1, -1], [0], [2**40] * 3, [0.5])
    attribute = _any(node.attribute, rng)
    name = attribute.name if attribute is not None else "axis"
    if attribute is not None:
        node.attribute.remove(attribute)
    if rng.random() < 0.8:
        node.attribute.append(helper.make_attribute(name, _choose(values, rng)))


def _constant(proto: Any, rng: Rng) -> None:
    """A weight is cut short, has other dimensions, or lies in a file elsewhere."""
    tensor = _any(proto.graph.initializer, rng)
    if tensor is None:
        return
    kind = rng.integers(4)
    if kind == 0:
        tensor.raw_data = tensor.raw_data[: rng.integers(len(tensor.raw_data) + 1)]
    elif kind == 1:
        tensor.dims.append(_choose(_NUMBERS, rng))
    elif kind == 2 and len(tensor.dims):
        tensor.dims[int(rng.integers(len(tensor.dims)))] = _choose(_NUMBERS, rng)
    else:
        tensor.data_location = TensorProto.EXTERNAL
        place = _choose(("/etc/passwd", "../../etc/passwd", "missing.bin", "", "mutant.onnx"), rng)
        tensor.external_data.add(key="location", value=place)


def _values(proto: Any, rng: Rng) -> None:
    """Numbers that mean shapes and indices become others."""
    tensor = _any([item for item in proto.graph.initializer if item.data_type == TensorProto.INT64], rng)
    if tensor is not None and len(tensor.raw_data) >= 8:
        numbers = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 8 * 8], np.int64).copy()
        numbers[rng.integers(len(numbers))] = _choose(_NUMBERS, rng)
        tensor.raw_data = numbers.tobytes()


def _version(proto: Any, rng: Rng) -> None:
    if rng.random() < 0.3:
        proto.ir_version = _choose(_NUMBERS, rng)
    elif len(proto.opset_import) and rng.random() < 0.8:
        proto.opset_import[0].version = _choose((*_NUMBERS, 6, 9, 11, 13, 18, 21, 99), rng)
    else:
        del proto.opset_import[:]


def _list(proto: Any, rng: Rng) -> None:
    """An entry of the graph is dropped, doubled, or all of them are."""
    graph = proto.graph
    items = _choose((graph.node, graph.input, graph.output, graph.initializer), rng)
    if not len(items):
        return
    at = int(rng.integers(len(items)))
    if rng.random() < 0.4:
        items.add().CopyFrom(items[at])
    elif rng.random() < 0.8:
        del items[at]
    else:
        del items[:]


def _subgraph(proto: Any, rng: Rng) -> None:
    """A branch within a branch, and so on; or a loop whose body is the graph itself."""
    with contextlib.suppress(DecodeError):  # nested more deeply than a file may be
        inner = onnx.GraphProto.FromString(proto.graph.SerializeToString())
        for depth in range(int(rng.integers(1, 20))):
            outer = helper.make_graph([_NODE("If", ["q"], ["y"])], f"g{depth}", [], list(inner.output))
            outer.node[0].attribute.append(helper.make_attribute("then_branch", inner))
            inner = outer
        operator, name = _choose((("If", "then_branch"), ("Loop", "body")), rng)
        proto.graph.node.append(_NODE(operator, ["q", "x"], ["z"]))
        proto.graph.node[-1].attribute.append(helper.make_attribute(name, inner))


def _swap(proto: Any, rng: Rng) -> None:
    """Operators in another order, so that one reads what is made later."""
    nodes = [onnx.NodeProto.FromString(item.SerializeToString()) for item in proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes[index] for index in rng.permutation(len(nodes)))


_BYTES: tuple[Callable[[bytes, Rng], bytes], ...] = (_flip, _flip, _cut, _zeros, _repeat, _noise)
_GRAPH: tuple[Callable[[Any, Rng], None], ...] = (
    _shape, _dtype, _edge, _operator, _attribute, _constant, _values, _version, _list, _subgraph, _swap,
)  # fmt: skip
