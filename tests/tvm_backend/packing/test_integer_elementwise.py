"""What is computed element by element is what ONNX Runtime computes, for all pairs of bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType

from autotune.tvm_backend.search.tasks import arguments, as_program

from ..quantised_nets import Network, outcome

_PAIRS = np.stack(np.meshgrid(np.arange(256), np.arange(256))).reshape(2, 1, 1, 256, 256).astype(np.uint8)


def quantised_operator(operator: str, seed: int) -> onnx.ModelProto:
    """An operator on two bytes, with scales and zero points that the seed draws."""
    rng = np.random.default_rng(seed)
    names = ("a", "b", "c")
    constants = {f"{name}_scale": np.float32(rng.uniform(0.02, 0.1)) for name in names}
    constants |= {f"{name}_zero": np.uint8(rng.integers(256)) for name in names}
    about = {name: [f"{name}_scale", f"{name}_zero"] for name in names}
    nodes = [helper.make_node("DequantizeLinear", [name, *about[name]], [f"{name}_float"]) for name in "ab"]
    nodes.append(helper.make_node(operator, ["a_float", "b_float"], ["c_float"]))
    nodes.append(helper.make_node("QuantizeLinear", ["c_float", *about["c"]], ["c"]))
    given = [helper.make_tensor_value_info(name, TensorProto.UINT8, _PAIRS[0].shape) for name in names]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, operator, given[:2], given[2:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("operator", ("Add", "Mul"))
def test_all_pairs_of_bytes_give_what_onnx_runtime_computes(tmp_path, here, operator, seed):
    path = tmp_path / "operator.onnx"
    onnx.save(quantised_operator(operator, seed), path)
    assert outcome(path, here, *_PAIRS).share == 0


@pytest.mark.parametrize("count", (256 * 256, 256 * 3, 200))
def test_a_function_of_one_byte_is_what_onnx_runtime_computes_for_all_of_them(written, cpu, count):
    net = Network((1, count))
    x = (np.resize(np.arange(256), (1, count)).astype(np.float32) - 117) * np.float32(0.03)
    net.requantised(0.03, 117)
    net.add("Sigmoid", net.last)
    net.requantised(1 / 256, 0)
    assert outcome(written(net), cpu, x).share == 0


@pytest.mark.parametrize(
    ("channels", "activations", "first"),
    [
        (32, QuantType.QUInt8, "image"),
        (24, QuantType.QInt8, "gate"),
        pytest.param(32, QuantType.QInt8, "gate", marks=pytest.mark.slow),
        pytest.param(24, QuantType.QUInt8, "image", marks=pytest.mark.slow),
    ],
)
def test_an_image_is_gated_in_bytes(quantised, here, channels, activations, first):
    net = Network((2, 16, 9, 7))
    image = net.conv(16, channels)
    net.add("GlobalAveragePool", image)
    net.add("Relu", net.conv(channels, 8, 1))
    gate = net.add("Sigmoid", net.conv(8, channels, 1))
    net.add("Mul", *((image, gate) if first == "image" else (gate, image)))
    net.conv(channels, 16, 1)
    result = outcome(quantised(net, activations=activations), here)
    assert result.share == 0
    assert result.kernels.count("integer_conv2d") == 4
    assert not any("multiply" in name for name in result.kernels)


@pytest.mark.parametrize(
    ("channels", "activations"),
    [(24, QuantType.QInt8), pytest.param(32, QuantType.QUInt8, marks=pytest.mark.slow)],
)
def test_a_normalisation_of_channels_that_no_layer_takes_in_is_computed_in_bytes(
    quantised, here, channels, activations
):
    net = Network((2, 16, 8, 8))
    net.add("Concat", net.conv(16, channels - 16, 1), net.conv(16, 16, 1, of="input"), axis=1)
    vectors = [net.rng.uniform(0.5, 2, channels).astype(np.float32) for _ in range(4)]
    net.add("BatchNormalization", net.last, *map(net.constant, vectors))
    net.add("Relu", net.last)
    net.conv(channels, 16, 1)
    result = outcome(quantised(net, activations=activations), here)
    assert result.share < 0.02 and result.error < 0.02, "ONNX Runtime rounds otherwise between two bytes"
    assert result.kernels.count("integer_conv2d") == 2
    assert not any("multiply" in name or "divide" in name for name in result.kernels)


def test_the_channels_of_an_input_are_scaled_in_bytes_and_stay_few(written, here):
    net = Network((1, 3, 32, 32))
    net.requantised()
    net.add("Mul", net.last, net.constant(net.rng.uniform(0.5, 2, (1, 3, 1, 1)).astype(np.float32)))
    net.conv_of_bytes(net.requantised(), 16, 3, 3, 3)
    net.requantised()
    result = outcome(written(net), here)
    assert result.share < 0.02
    functions = result.prepared.functions.items()
    (scaled,) = (program for name, program in functions if "integer_channels" in name.name_hint)
    assert list(arguments(as_program(scaled))[0].shape) == [1, 32, 32, 1, 4]


@pytest.mark.parametrize("order", (("Mul", "Add"), ("Add", "Mul")))
def test_sums_and_products_of_channels_with_constants_are_computed_in_bytes(quantised, here, order):
    net = Network((1, 16, 8, 8))
    net.add("MaxPool", net.conv(16, 32), kernel_shape=[2, 2], strides=[2, 2])
    for kind in order:
        net.add(kind, net.last, net.constant(net.rng.uniform(0.5, 2, (1, 32, 1, 1)).astype(np.float32)))
    net.conv(32, 16, 1)
    without = [node.name for node in net.nodes if node.op_type in order]
    assert len(without) == 2
    result = outcome(quantised(net, without=without), here)
    assert result.share < 0.02 and result.error < 0.02
    assert result.kernels.count("integer_conv2d") == 2
    assert not any("multiply" in name for name in result.kernels)


@pytest.mark.parametrize("first", ("convolution", "image"))
def test_an_addition_in_a_convolution_rounds_as_onnx_runtime_does_in_either_order(quantised, here, first):
    net = Network((1, 16, 64, 64))
    image = net.conv(16, 16, 1)
    convolution = net.conv(16, 16, 1)
    net.add("Add", *((convolution, image) if first == "convolution" else (image, convolution)))
    net.add("Relu", net.last)
    result = outcome(quantised(net), here)
    assert "integer_conv2d_add" in result.kernels
    assert result.share == 0
