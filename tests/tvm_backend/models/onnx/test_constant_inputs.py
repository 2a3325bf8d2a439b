"""An input that always has one value is a constant, and what it decides is decided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import ModelError
from autotune.tvm_backend.models.onnx.read import freeze

PATH = Path("model.onnx")


def branch(name, kind):
    output = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(kind, ["x"], ["result"])], name, [], [output])


def model():
    """Relu at a rate of 16000, else a sum that only fits vectors of another length."""
    other = branch("else", "Identity")
    other.node[0].CopyFrom(helper.make_node("Add", ["x", "three"], ["result"]))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is_rate"]),
        helper.make_node("If", ["is_rate"], ["y"], then_branch=branch("then", "Relu"), else_branch=other),
    ]
    constants = [
        numpy_helper.from_array(np.array(16_000), "rate"),
        numpy_helper.from_array(np.ones(3, np.float32), "three"),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_the_branch_that_a_constant_input_decides_is_taken_and_the_other_may_be_anything():
    frozen = freeze(PATH, model(), {"sr": 16_000})
    assert [item.name for item in frozen.graph.input] == ["x"]
    assert not any(node.op_type == "If" for node in frozen.graph.node)
    session = onnxruntime.InferenceSession(frozen.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.array([-1, 2], np.float32)})[0].tolist() == [0, 2]


def test_an_input_with_another_constant_takes_the_other_branch():
    assert "Add" in [node.op_type for node in freeze(PATH, model(), {"sr": 8_000}).graph.node]


def test_the_model_that_was_given_stays_as_it_was():
    given = model()
    freeze(PATH, given, {"sr": 16_000})
    assert given == model()


def test_an_input_that_does_not_exist():
    with pytest.raises(ModelError, match="no input 'rate_'; its inputs: x, sr"):
        freeze(PATH, model(), {"rate_": 1})


def test_an_input_of_several_numbers():
    with pytest.raises(ModelError, match="'x' has more than one element"):
        freeze(PATH, model(), {"x": 1})


def test_an_input_that_is_a_list():
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])]
    inputs.append(helper.make_tensor_value_info("to", TensorProto.INT64, [2]))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "to"], ["y"])], "g", inputs, [output])
    reshape = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    frozen = freeze(PATH, reshape, {"to": [2.0, 3.0]})
    assert [item.name for item in frozen.graph.input] == ["x"]
    assert numpy_helper.to_array(frozen.graph.initializer[0]).tolist() == [2, 3]
    for name, value in {"to": [1.0, 2.0, 3.0], "x": 2.0}.items():
        with pytest.raises(
            ModelError, match=f"input {name!r} (does not take a list of 3 numbers|has more than one element)"
        ):
            freeze(PATH, reshape, {name: value})


def test_an_if_that_an_input_decides_stays():
    frozen = freeze(PATH, model(), {})
    assert "If" in [node.op_type for node in frozen.graph.node]
