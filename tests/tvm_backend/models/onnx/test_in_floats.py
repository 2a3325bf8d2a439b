"""A quantised graph without its roundings computes what its weights and ranges mean in floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.tvm_backend.export.runners import onnx_session
from autotune.tvm_backend.models.onnx.in_floats import in_floats

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 8)).astype(np.float32)
IMAGE = RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)
STEP = np.float32(0.02)
W = RNG.integers(-100, 100, (8, 5)).astype(np.int8)
KERNEL = RNG.integers(-100, 100, (4, 3, 3, 3)).astype(np.int8)
NODE = helper.make_node


def network(nodes: Sequence[Any], size: Sequence[int], **constants: Any) -> Any:
    """A graph from `x` to `y`. Constants are arrays by name."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, size)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def computed(proto: Any, x: Any) -> Any:
    (y,) = onnx_session(proto.SerializeToString(), 1, plain=True).run(None, {"x": x})
    return y


def error(proto: Any, x: Any, expected: Any) -> float:
    floats = in_floats(proto)
    assert floats is not None
    return float(np.abs(computed(floats, x) - expected).max() / np.abs(expected).max())


def convolved(image: Any, kernel: Any) -> Any:
    graph = network([NODE("Conv", ["x", "w"], ["y"])], image.shape, w=kernel.astype(np.float32))
    return computed(graph, image)


QUANTISE = NODE("QuantizeLinear", ["x", "step", "middle"], ["q"])
QUANTITY = {"step": STEP, "middle": np.uint8(120)}
RESULT = {"wide": np.float32(0.5), "byte": np.int8(3)}
WEIGHT = {"w": W, "unit": np.float32(0.1), "none": np.int8(0)}


def test_activations_are_cut_off_at_the_ends_of_their_range_and_not_rounded() -> None:
    nodes = [QUANTISE, NODE("DequantizeLinear", ["q", "step", "middle"], ["y"])]
    assert error(network(nodes, X.shape, **QUANTITY), X, np.clip(X, -120 * STEP, 135 * STEP)) < 1e-6


def test_what_moves_and_picks_integers_moves_and_picks_floats() -> None:
    nodes = [
        QUANTISE,
        NODE("Transpose", ["q"], ["t"]),
        NODE("Reshape", ["t", "shape"], ["r"]),
        NODE("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        NODE("DequantizeLinear", ["m", "step", "middle"], ["y"]),
    ]
    graph = network(nodes, X.shape, shape=np.int64([1, 1, 8, 4]), **QUANTITY)
    expected = np.clip(X, -120 * STEP, 135 * STEP).T.reshape(1, 1, 4, 2, 2, 2).max(axis=(3, 5))
    assert error(graph, X, expected) < 1e-6


def test_weights_with_a_scale_for_each_column_are_those_numbers() -> None:
    nodes = [NODE("DequantizeLinear", ["w", "units"], ["f"], axis=1), *rest(["x", "f"])]
    units = RNG.uniform(0.1, 0.2, 5).astype(np.float32)
    assert error(network(nodes, X.shape, w=W, units=units, **QUANTITY), X, clipped(X @ (W * units))) < 1e-6


def rest(operands: list[str]) -> list[Any]:
    """A product whose result is quantised, so that the graph rounds at all."""
    quantity = ["step", "middle"]
    return [
        NODE("MatMul", operands, ["p"]),
        NODE("QuantizeLinear", ["p", *quantity], ["n"]),
        NODE("DequantizeLinear", ["n", *quantity], ["y"]),
    ]


def clipped(x: Any) -> Any:
    return np.clip(x, -120 * STEP, 135 * STEP)


def test_a_product_that_is_quantised_as_it_runs() -> None:
    nodes = [
        NODE("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        NODE("MatMulInteger", ["q", "w", "z", "none"], ["sums"]),
        NODE("Cast", ["sums"], ["wide"], to=TensorProto.FLOAT),
        NODE("Mul", ["wide", "s"], ["y"]),
    ]
    graph = network(nodes, X.shape, w=W, none=np.int8(0))
    assert error(graph, X, X @ W.astype(np.float32)) < 1e-6
    assert np.abs(computed(graph, X) - X @ W).max() > 1  # and the graph itself rounds


def test_a_product_of_integers_with_a_result_of_integers() -> None:
    names = ["q", "step", "middle", "w", "unit", "none", "wide", "byte"]
    nodes = [QUANTISE, NODE("QLinearMatMul", names, ["r"]), NODE("DequantizeLinear", ["r", "wide", "byte"], ["y"])]
    graph = network(nodes, X.shape, **QUANTITY, **RESULT, **WEIGHT)
    assert error(graph, X, np.clip(clipped(X) @ (W * np.float32(0.1)), -131 * 0.5, 124 * 0.5)) < 1e-6


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_convolution_of_integers_with_a_bias(per_channel: bool) -> None:
    units = RNG.uniform(0.01, 0.02, 4).astype(np.float32) if per_channel else np.float32(0.01)
    bias = np.int32([-500, 0, 1000, 2000])
    names = ["q", "step", "middle", "w", "units", "none", "wide", "byte", "bias"]
    nodes = [QUANTISE, NODE("QLinearConv", names, ["r"]), NODE("DequantizeLinear", ["r", "wide", "byte"], ["y"])]
    constants = {"w": KERNEL, "units": units, "none": np.zeros_like(units, np.int8), "bias": bias}
    unit = np.broadcast_to(units, 4).reshape(4, 1, 1, 1)
    expected = convolved(clipped(IMAGE), KERNEL * unit) + (bias * STEP * unit[:, 0, 0, 0]).reshape(1, 4, 1, 1)
    assert error(network(nodes, IMAGE.shape, **constants, **QUANTITY, **RESULT), IMAGE, expected) < 1e-6


def test_a_convolution_with_sums_of_integers() -> None:
    nodes = [
        QUANTISE,
        NODE("ConvInteger", ["q", "w", "middle"], ["sums"]),
        NODE("Cast", ["sums"], ["y"], to=TensorProto.FLOAT),
    ]
    expected = convolved(np.clip(IMAGE / STEP, -120, 135), KERNEL)
    assert error(network(nodes, IMAGE.shape, w=KERNEL, **QUANTITY), IMAGE, expected) < 1e-6


def test_a_bias_that_is_rounded_to_the_unit_of_the_sums() -> None:
    nodes = [
        NODE("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        NODE("ConvInteger", ["q", "w", "z"], ["sums"]),
        NODE("Div", ["bias", "s"], ["steps"]),
        NODE("Floor", ["steps"], ["whole"]),
        NODE("Cast", ["whole"], ["number"], to=TensorProto.INT32),
        NODE("Add", ["sums", "number"], ["biased"]),
        NODE("Cast", ["biased"], ["wide"], to=TensorProto.FLOAT),
        NODE("Mul", ["wide", "s"], ["y"]),
    ]
    bias = np.float32([0.3, -0.4, 150, 7]).reshape(1, 4, 1, 1)
    assert error(network(nodes, IMAGE.shape, w=KERNEL, bias=bias), IMAGE, convolved(IMAGE, KERNEL) + bias) < 1e-6


def test_operators_of_the_runtime_that_add_integers() -> None:
    names = ["q", "step", "middle"] * 2 + ["wide", "byte"]
    nodes = [
        QUANTISE,
        NODE("QLinearAdd", names, ["r"], domain="com.microsoft"),
        NODE("DequantizeLinear", ["r", "wide", "byte"], ["y"]),
    ]
    assert error(network(nodes, X.shape, **QUANTITY, **RESULT), X, 2 * clipped(X)) < 1e-6


@pytest.mark.parametrize("per_column", [False, True])
def test_an_lstm_whose_weights_are_bytes(per_column: bool) -> None:
    x = RNG.standard_normal((5, 1, 8)).astype(np.float32)
    numbers = {"w": RNG.integers(-99, 99, (1, 8, 12)), "r": RNG.integers(-99, 99, (1, 3, 12))}
    weights = {name: value.astype(np.int8) for name, value in numbers.items()}
    scale = RNG.uniform(0.005, 0.01, (1, 12) if per_column else (1,)).astype(np.float32)
    zero = np.full(scale.shape, 2, np.int8)
    names = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    node = NODE("DynamicQuantizeLSTM", names, ["y"], hidden_size=3, domain="com.microsoft")
    floats = {
        name: ((value - 2.0) * scale[:, None]).swapaxes(1, 2).astype(np.float32) for name, value in numbers.items()
    }
    plain = network([NODE("LSTM", ["x", "w", "r"], ["y"], hidden_size=3)], x.shape, **floats)
    assert error(network([node], x.shape, s=scale, z=zero, **weights), x, computed(plain, x)) < 1e-6


def test_weights_of_half_bytes_are_multiplied_with_floats() -> None:
    packed = RNG.integers(0, 256, (5, 1, 16)).astype(np.uint8)
    scale = RNG.uniform(0.1, 0.2, 5).astype(np.float32)
    x = RNG.standard_normal((4, 32)).astype(np.float32)
    attributes = {"K": 32, "N": 5, "bits": 4, "block_size": 32, "accuracy_level": 4}
    graph = network([NODE("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)], x.shape,
                    w=packed, s=scale)  # fmt: skip
    halves = np.stack([packed & 15, packed >> 4], axis=-1).reshape(5, 32).astype(np.float32) - 8
    assert error(graph, x, x @ (halves * scale[:, None]).T) < 1e-6


@pytest.fixture
def plain() -> Any:
    return network([NODE("MatMul", ["x", "w"], ["y"])], X.shape, w=W.astype(np.float32))


def test_a_graph_that_rounds_nothing_has_no_other_form(plain: Any) -> None:
    assert in_floats(plain) is None


def in_a_branch(inner: Callable[[], Any]) -> Any:
    branch = helper.make_graph([inner()], "branch", [], [helper.make_tensor_value_info("b", TensorProto.UINT8, None)])
    return NODE("If", ["yes"], ["q"], then_branch=branch, else_branch=branch)


@pytest.mark.parametrize(
    "unknown",
    [
        lambda: NODE("QuantizeLinear", ["x", "step"], ["q"], block_size=2, axis=1),
        lambda: in_a_branch(lambda: NODE("QuantizeLinear", ["x", "step"], ["b"])),
    ],
    ids=["in blocks", "in a branch"],
)
def test_what_has_no_rule_is_said_to_have_none(unknown: Callable[[], Any]) -> None:
    nodes = [unknown(), NODE("DequantizeLinear", ["q", "step"], ["y"])]
    assert in_floats(network(nodes, X.shape, step=STEP, yes=np.bool_(True))) is None


def test_the_graph_itself_stays_as_it_is() -> None:
    graph = network([QUANTISE, NODE("DequantizeLinear", ["q", "step", "middle"], ["y"])], X.shape, **QUANTITY)
    before = graph.SerializeToString()
    in_floats(graph)
    assert graph.SerializeToString() == before
