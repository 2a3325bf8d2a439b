"""Random graphs on rows of which there are as many as the data say: what is taken puts out what ONNX Runtime does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import OperatorRefused
from autotune.tvm_backend.export.padding import cut, split_counts
from autotune.tvm_backend.models.onnx.counted import COUNTED, CountedOutputs, counted_outputs, with_counts

ANY = 2**62
RESHAPED = ([-1], [-1, 1], [1, -1], [-1, 2], [2, -1], [0, -1], [-1, 0], [0, 0], [1, -1, 2])
Arrays = list[np.ndarray]


class Drawn:
    """A graph of a few operators, drawn by a seed, after some that find rows. Its output is that of the last one."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._nodes = [helper.make_node("Greater", ["x", "half"], ["above"])]
        self._constants = {"half": np.float32(0.5)}
        self._floats = ["x"]
        self._integers = ["places"]
        self._nodes.append(helper.make_node("NonZero", ["above"], ["places"]))
        if seed % 2:
            self._nodes.append(helper.make_node("Gather", ["above", self._constant(0)], ["some"], axis=1))
            self._nodes.append(helper.make_node("Compress", ["x", "some"], ["part"], axis=0))
            self._floats.append("part")
        for _ in range(self._draw.randint(2, 7)):
            self._add()

    def _constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants[name] = np.asarray(value, dtype)
        return name

    def _op(self, results: list[str], kind: str, *inputs: str, **attributes: Any) -> str:
        results.append(f"{kind}_{len(self._nodes)}")
        self._nodes.append(helper.make_node(kind, inputs, [results[-1]], **attributes))
        return results[-1]

    def _add(self) -> None:
        draw = self._draw
        kind = draw.choice((self._floats, self._integers, self._integers))
        x = draw.choice(kind[-4:])
        other = draw.choice(kind)
        index = draw.choice(self._integers)
        axis = draw.randint(0, 1)
        adders = (
            lambda: self._op(kind, "Transpose", x, perm=[1, 0]),
            lambda: self._op(kind, "Gather", x, self._constant(draw.choice((0, 1, -1, [0, 1]))), axis=axis),
            lambda: self._op(kind, "Unsqueeze", x, self._constant([draw.randint(0, 2)])),
            lambda: self._op(kind, "Squeeze", x, self._constant([axis])),
            lambda: self._op(kind, "Reshape", x, self._constant(draw.choice(RESHAPED))),
            lambda: self._op(kind, "Add", x, other),
            lambda: self._op(kind, "Concat", x, other, axis=axis),
            lambda: self._op(self._floats, "Gather", "x", index, axis=axis),
            lambda: self._op(self._floats, "GatherND", "x", index),
            lambda: self._op(self._floats, "Cast", index, to=TensorProto.FLOAT),
            lambda: self._op(kind, "Slice", x, *(self._constant([it]) for it in (0, draw.choice((1, 2, ANY)), axis))),
            lambda: self._op(kind, "ReduceSum", x, self._constant([axis]), keepdims=draw.randint(0, 1)),
            lambda: self._op(self._integers, "ArgMax", x, axis=axis, keepdims=draw.randint(0, 1)),
            lambda: self._shape_again(kind, x, other),
        )
        draw.choice(adders)()

    def _shape_again(self, kind: list[str], x: str, other: str) -> None:
        shape = self._op(self._integers, "Shape", x)
        if self._draw.random() < 0.5:
            shape = self._op(self._integers, "Concat", shape, self._constant([self._draw.randint(1, 2)]), axis=0)
        self._op(kind, self._draw.choice(("Reshape", "Expand")), other, shape)

    def model(self) -> Any:
        output = self._nodes[-1].output[0]
        dtype = TensorProto.FLOAT if output in self._floats else TensorProto.INT64
        constants = [numpy_helper.from_array(value, name) for name, value in self._constants.items()]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])
        made = [helper.make_tensor_value_info(output, dtype, None)]
        graph = helper.make_graph(self._nodes, "drawn", [x], made, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(proto: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def with_largest(proto: Any, rows: dict[str, np.ndarray]) -> tuple[Any, dict[str, np.ndarray]]:
    """The graph for the importer without what finds rows, and what that would have put out: zeros after the rows."""
    graph = with_counts(proto)
    feed = {}
    for node in [node for node in graph.graph.node if node.op_type in COUNTED]:
        name, count = node.output
        axis = 1 if node.op_type == "NonZero" else 0
        feed[name] = np.zeros((2, 6) if axis else (3, 2), rows[name].dtype)
        feed[name][tuple(map(slice, rows[name].shape))] = rows[name]
        feed[count] = np.array(rows[name].shape[axis])
        graph.graph.node.remove(node)
        for given in (name, count):
            dtype = helper.np_dtype_to_tensor_dtype(feed[given].dtype)
            graph.graph.input.append(helper.make_tensor_value_info(given, dtype, feed[given].shape))
    for item in graph.graph.output[1:]:
        item.type.tensor_type.elem_type = TensorProto.INT64
    return graph, feed


def runs(proto: Any) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray]]]:
    """Some inputs that ONNX Runtime takes, its output and the rows that it finds."""
    found = [node.output[0] for node in proto.graph.node if node.op_type in COUNTED]
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    types = {"places": TensorProto.INT64, "part": TensorProto.FLOAT}
    whole.graph.output.extend(helper.make_tensor_value_info(name, types[name], None) for name in found)
    try:
        runner = session(whole)
    except Exception:  # most that are drawn fit no shapes
        return
    for seed, scale in enumerate((1, 1, 0.8, 0.55, 2)):
        feed = {"x": (scale * np.random.default_rng(seed).random((3, 2))).astype(np.float32)}
        try:
            output, *rows = runner.run(None, feed)
        except Exception:  # or do not for these data
            continue
        yield feed, output, dict(zip(found, rows, strict=True))


def outcome(seed: int) -> str:
    """Whether a graph is taken, after its outputs were compared."""
    proto = Drawn(seed).model()
    several = list(runs(proto))
    if not several:
        return "does not run"
    try:
        counted = counted_outputs(proto)
    except OperatorRefused:
        return "refused"
    for feed, right, rows in several:
        graph, largest = with_largest(proto, rows)
        outputs, counts = split_counts(session(graph).run(None, feed | largest), counted.names)
        own = cut(outputs[0], counted.dims[0], counts) if counts else outputs[0]
        assert own.shape == right.shape, f"{seed}: {own.shape} is not {right.shape}"
        np.testing.assert_allclose(own, right, err_msg=str(seed))
    return "counted" if counted != CountedOutputs() else "of fixed size"


@pytest.mark.parametrize(
    "first", [0, 200, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(400, 4000, 400))]
)
def test_what_is_taken_of_random_graphs_is_right(first: int) -> None:
    outcomes = Counter(map(outcome, range(first, first + 200)))
    assert outcomes["counted"] > 10 and outcomes["refused"] > 20
