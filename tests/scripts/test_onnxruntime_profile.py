"""scripts/bench/onnxruntime_profile: what ONNX Runtime runs, from its profile and its optimised graph."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import helper


@pytest.fixture(scope="module")
def profiles(load_script) -> ModuleType:
    return load_script("onnxruntime_profile")


@pytest.fixture
def pooled(tmp_path):
    """A model that pools an image of 4 KB, rectifies it, and concatenates both."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["a"], ["b"]),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
    ]
    shapes = {"x": [1, 4, 16, 16], "y": [1, 8, 16, 16]}
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items())
    path = tmp_path / "pooled.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), path)
    return path


@pytest.fixture
def image():
    return {"x": np.zeros((1, 4, 16, 16), np.float32)}


def test_operators_come_in_their_order_with_the_bytes_that_they_write(profiles, pooled, image):
    execution = profiles.profile(pooled, image, {}, 1).execution
    assert execution.inputs == {"x": 4096} and execution.outputs == {"y"}
    assert [(step.operator, list(step.writes.values())) for step in execution.steps] == [
        ("MaxPool", [4096]),
        ("LeakyRelu", [4096]),
        ("Concat", [8192]),
    ]
    assert set(execution.steps[2].reads) == {name for step in execution.steps[:2] for name in step.writes}


def test_what_the_allocator_was_asked_for_has_the_inputs_and_what_kernels_write(profiles, pooled, image):
    assert profiles.profile(pooled, image, {}, 1).requested == 4096 + 4096 + 4096 + 8192


def event(operator, name, size):
    facts = {"op_name": operator, "node_index": "7", "output_size": str(size), "output_type_shape": [{"float": [4]}]}
    return {"name": f"{name}_kernel_time", "args": facts}


def graph(name, **attributes):
    node = helper.make_node("Relu", ["x"], ["y"], name=name, **attributes)
    return helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])])


def test_an_operator_without_a_name_is_that_of_its_number(profiles):
    (step,) = profiles.execution(graph(""), [event("Relu", "Relu_7", 16)], {}).steps
    assert step.writes == {"y": 16}


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "0 kernels ran, and the optimised graph has 1 operators"),
        ([event("Relu", "other", 16)], "other_kernel_time ran where the optimised graph has Relu relu"),
        ([event("Clip", "relu", 16)], "relu_kernel_time ran where the optimised graph has Relu relu"),
        ([event("Relu", "relu", 32)], r"wrote 32 bytes, not \[16\] to y"),
    ],
)
def test_a_profile_that_is_not_the_graphs_is_refused(profiles, events, reason):
    with pytest.raises(profiles.Unmatched, match=reason):
        profiles.execution(graph("relu"), events, {})


def test_an_operator_with_a_graph_of_its_own_is_refused(profiles):
    with pytest.raises(profiles.Unmatched, match="runs a graph of its own"):
        profiles.execution(graph("relu", branch=graph("inner")), [event("Relu", "relu", 16)], {})
