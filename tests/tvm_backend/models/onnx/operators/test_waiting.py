"""Rules that ask for a shape that another rule has to make known first."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import OperatorRefused
from autotune.tvm_backend.models.onnx.operators.lower import is_lowered, lower

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2, 3])


def model(nodes, constants):
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [X], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scanned(into: str):
    """A Loop of four steps, of whose stacked results inference does not know the shape."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes_on"]),
            helper.make_node("Gather", ["x", "step"], ["slice"], axis=0),
        ],
        "body",
        [value("step", TensorProto.INT64, []), value("go", TensorProto.BOOL, [])],
        [value("goes_on", TensorProto.BOOL, []), value("slice", TensorProto.FLOAT, None)],
    )
    return helper.make_node("Loop", ["count", ""], [into], "loop", body=body)


COUNT = numpy_helper.from_array(np.array(4), "count")


def test_a_rule_waits_for_the_one_that_makes_its_shape_known():
    lengths = numpy_helper.from_array(np.array([2, 4]), "lengths")
    turned = helper.make_node("ReverseSequence", ["all", "lengths"], ["y"], "turn")
    first = lower(model([scanned("all"), turned], [COUNT, lengths]))
    assert [node.op_type for node in first.graph.node if node.op_type in ("Loop", "ReverseSequence")] == [
        "ReverseSequence"
    ]
    assert is_lowered(lower(first))


def test_an_operator_whose_shape_no_rule_makes_known_is_refused_with_its_inputs():
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT64, ["n"])
    turned = helper.make_node("ReverseSequence", ["open", "lengths"], ["y"], "turn")
    proto = model([turned], [])
    proto.graph.input.append(helper.make_tensor_value_info("open", TensorProto.FLOAT, ["a", "b", 3]))
    proto.graph.input.append(lengths)
    with pytest.raises(OperatorRefused) as caught:
        lower(proto)
    refusal = caught.value.refusal
    assert refusal is not None
    assert (refusal.operator, refusal.node, refusal.version) == ("ReverseSequence", "turn", 17)
