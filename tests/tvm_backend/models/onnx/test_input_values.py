"""What a graph says of the values of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.tvm_backend.models.onnx.input_values import InputValues

_IMAGE = (1, 3, 32, 32)


def values(nodes: list[Any], shape: tuple[int, ...] = _IMAGE, **constants: Any) -> InputValues:
    """What a graph with the float input `x` says."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return InputValues(helper.make_model(helper.make_graph(nodes, "g", inputs, [output], tensors)))


def node(kind: str, *names: str) -> onnx.NodeProto:
    """A node whose last name is its output."""
    *inputs, output = names
    return helper.make_node(kind, inputs, [output])


def per_channel(*numbers: float) -> Any:
    return np.array(numbers, np.float32).reshape(1, -1, 1, 1)


@pytest.mark.parametrize(("zero", "low", "high"), [(np.uint8(128), -2.56, 2.54), (np.int8(0), -2.56, 2.54)])
def test_a_network_that_quantises_an_input_names_its_range(zero, low, high):
    nodes = [node("Transpose", "x", "t"), node("QuantizeLinear", "t", "scale", "zero", "y")]
    assert values(nodes, scale=np.float32(0.02), zero=zero).ranges["x"] == pytest.approx((low, high), rel=1e-5)


@pytest.mark.parametrize(
    ("steps", "constants", "high"),
    [
        (["Sub", "Div"], [per_channel(0.485, 0.456, 0.406), per_channel(0.229, 0.224, 0.225)], 1),
        (["Sub", "Div"], [per_channel(123.7, 116.3, 103.5), per_channel(58.4, 57.1, 57.4)], 255),
        (["Sub"], [per_channel(103.9, 116.8, 123.7)], 255),  # Caffe's
        (["Div"], [np.float32(255)], 255),
        (["Mul", "Sub"], [np.float32(1 / 127.5), np.float32(1)], 255),
        (["Mul", "Sub"], [np.float32(2), np.float32(1)], 1),
        (["Mul", "Add"], [per_channel(0.0142, 0.0188, 0.0146), per_channel(-3.8, -1.58, -0.88)], 255),
    ],
)
def test_a_normalisation_says_how_bright_white_is(steps, constants, high):
    names = ["x", *(f"v{place}" for place in range(len(steps)))]
    nodes = [node(kind, names[place], f"c{place}", names[place + 1]) for place, kind in enumerate(steps)]
    given = {f"c{place}": value for place, value in enumerate(constants)}
    assert values([*nodes, node("Relu", names[-1], "y")], **given).ranges == {"x": (0.0, high)}


def test_arithmetic_on_what_is_no_image_says_nothing():
    assert not values([node("Div", "x", "c", "y")], (1, 40), c=np.float32(100)).ranges
    assert not values([node("Div", "c", "x", "y")], c=np.float32(255)).ranges


@pytest.mark.parametrize(
    ("kind", "operands", "bound"),
    [
        ("GreaterOrEqual", ["table", "x"], 30.0),
        ("LessOrEqual", ["table", "x"], 1050.0),
        ("Less", ["x", "table"], 30.0),
        ("Greater", ["x", "table"], 1050.0),
    ],
)
def test_a_bound_lets_all_of_a_table_through(kind, operands, bound):
    made = values([node(kind, *operands, "y")], (), table=np.float32([100, 1000, 40, 1040]))
    assert made.ranges == {"x": (bound, bound)}


def test_filters_over_one_channel_read_a_sound():
    nodes = [node("Pad", "x", "p"), node("Unsqueeze", "p", "u"), node("Conv", "u", "w", "y")]
    assert values(nodes, (1, 576), w=np.zeros((258, 1, 256), np.float32)).sounds == {"x"}
    assert not values(nodes, (1, 576), w=np.zeros((258, 80, 3), np.float32)).sounds


def test_a_sample_rate_among_the_metadata_says_that_inputs_are_sounds():
    graph = helper.make_graph([], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 800))], [])
    model = helper.make_model(graph)
    assert not InputValues(model).sounds
    helper.set_model_props(model, {"sample_rate": "16000"})
    assert InputValues(model).sounds == {"x"}
