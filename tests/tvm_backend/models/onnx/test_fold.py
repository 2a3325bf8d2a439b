"""Constants of a graph that ONNX Runtime does not fold, such as those of a function that it has put in."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from autotune.tvm_backend.models.onnx.simplify import fold


def model(*nodes, constants=()):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", [x], [y], [numpy_helper.from_array(*pair) for pair in constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def operators(proto):
    return [node.op_type for node in proto.graph.node]


def run(proto, x):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_a_shape_that_needs_two_turns():
    """The second `Shape` is known only when the first `Reshape` has a constant shape."""
    computed = model(
        helper.make_node("Shape", ["x"], ["first"], end=2),
        helper.make_node("Concat", ["first", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["flat"]),
        helper.make_node("Shape", ["flat"], ["second"]),
        helper.make_node("Gather", ["second", "order"], ["turned"]),
        helper.make_node("Reshape", ["flat", "turned"], ["y"]),
        constants=[(np.array([2, 2]), "rest"), (np.array([3, 2, 1, 0]), "order")],
    )
    given = computed.SerializeToString()
    folded = fold(computed)
    assert operators(folded) == ["Reshape", "Reshape"] and computed.SerializeToString() == given
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(run(folded, x), run(computed, x))


def test_what_is_random_or_large_stays():
    large = (np.array([1 << 10, 1 << 10]), "shape")
    stays = model(
        helper.make_node("RandomNormal", [], ["noise"], shape=[4]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ReduceMax", ["zeros"], ["zero"], keepdims=0),
        helper.make_node("Add", ["x", "noise"], ["sum"]),
        helper.make_node("Add", ["sum", "zero"], ["y"]),
        constants=[large],
    )
    assert operators(fold(stays)) == operators(stays)
