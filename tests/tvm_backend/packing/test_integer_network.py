"""Quantised networks compute in integers, and put out what ONNX Runtime does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnxruntime.quantization import QuantFormat, QuantType

from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model

from ..quantised_nets import Network, computed, outcome

CLASSIFIER = [
    "integer_conv2d",
    "integer_conv2d",
    "integer_conv2d",
    "integer_conv2d_add",
    "integer_depthwise_conv2d",
]


def classifier(shape=(1, 3, 12, 12)) -> Network:
    """A convolution of each kind, an addition, pools and a product."""
    net = Network(shape)
    net.add("Relu", net.conv(3, 24, strides=[2, 2], pads=[1, 1, 1, 1]))
    skipped = net.conv(24, 32, 1)
    net.add("Relu", net.conv(32, 32, pads=[1, 1, 1, 1], group=32))
    net.add("Add", net.conv(32, 32, 1), skipped)
    net.add("MaxPool", net.last, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.add("GlobalAveragePool", net.last)
    net.add("Flatten", net.last)
    net.gemm(32, 10)
    return net


def assert_integers(path, target):
    result = outcome(path, target)
    assert result.kernels[:5] == CLASSIFIER
    assert all(name.startswith("reshape") for name in result.kernels[5:]), "floats of the last bytes"
    assert result.share == 0


def test_a_classifier_is_integer_kernels_from_end_to_end(quantised, cpu):
    assert_integers(quantised(classifier()), cpu)


@pytest.mark.parametrize(
    ("shape", "activations", "per_channel"),
    [
        ((2, 3, 9, 21), QuantType.QInt8, False),  # rows of pixels that are no whole vectors
        pytest.param((2, 3, 13, 9), QuantType.QUInt8, False, marks=pytest.mark.slow),
        pytest.param((1, 3, 12, 12), QuantType.QInt8, True, marks=pytest.mark.slow),
    ],
)
def test_a_batch_with_other_bytes(quantised, here, shape, activations, per_channel):
    assert_integers(quantised(classifier(shape), activations=activations, per_channel=per_channel), here)


def test_bounds_of_a_layer_are_those_of_its_bytes(written, here):
    net = Network((1, 16, 6, 6))
    net.requantised()
    for bounds in [(-0.3, 0.7), (0.0,)]:
        layer = net.conv_of_bytes(net.last, 16, 16, 1, 1)
        net.add("Clip", layer, *(net.constant(np.float32(bound)) for bound in bounds))
        net.requantised()
    result = outcome(written(net), here)
    assert result.share < 0.01, "ONNX Runtime computes such layers in floats"
    assert result.kernels == ["integer_conv2d", "reshape_transpose_dequantize"]


def test_between_images_and_rows_bytes_are_not_permuted(quantised, here):
    net = Network((1, 32, 6, 7))
    net.images_and_rows()
    result = outcome(quantised(net), here)
    assert sum("transpose" in name for name in result.kernels) == 1, "of the result"
    assert result.error < 0.02, "a few bytes differ by one: products that are added in another order"


def test_what_several_operators_read_is_added_and_joined_with_other_scales(quantised, here):
    net = Network((1, 16, 6, 6))
    shared = net.conv(16, 16)
    net.add("Add", net.conv(16, 16, 1), shared)
    total = net.add("Add", net.last, shared)
    net.add("Concat", total, net.conv(16, 48, 1, of=shared), axis=1)
    net.conv(64, 16)
    result = outcome(quantised(net), here)
    assert result.share == 0
    assert result.kernels.count("integer_conv2d_add") == 1


@pytest.mark.parametrize("without", [(), ("split",)], ids=["one scale", "scales of their own"])
def test_parts_of_channels_that_were_split(quantised, here, without):
    net = Network((1, 16, 6, 6))
    net.nodes.append(helper.make_node("Split", [net.conv(16, 48)], ["first", "second"], "split", axis=1))
    split = net.constant(np.array([16, 32]))
    net.nodes[-1].input.append(split)
    net.last = "second"
    net.add("Concat", "first", net.add("Relu", net.conv(32, 16, 1)), axis=1)
    net.conv(32, 16)
    result = outcome(quantised(net, without=without), here)
    assert result.share == 0
    names = [item.name_hint for item in result.prepared.get_global_vars()]
    assert any("integer_slice" in name for name in names)
    assert not [name for name in names if "split" in name]


@pytest.mark.parametrize("form", QuantFormat)
def test_rows_that_are_no_whole_vectors(quantised, here, form):
    net = Network((5, 20))
    net.matmul(20, 33)
    net.matmul(33, 7)
    result = outcome(quantised(net, format=form), here)
    assert result.kernels.count("integer_conv2d") == 2
    assert result.share == 0


def test_functions_of_one_value_are_one_table(quantised, cpu):
    net = Network((1, 16, 6, 6))
    value = net.conv(16, 16)
    net.add("Mul", net.add("Sigmoid", value), value)
    net.conv(16, 16, 1)
    result = outcome(quantised(net), cpu)
    assert "integer_table" in {item.name_hint for item in result.prepared.get_global_vars()}
    assert "integer_table" not in result.kernels, "it needs no search"
    assert result.share < 0.05 and result.error < 0.02, "ONNX Runtime's logistic function is a polynomial"


def test_what_has_no_integer_kernel_stays_in_floats(quantised, here):
    net = Network((1, 16, 6, 6))
    net.conv(16, 16)
    net.add("Softmax", net.last, axis=1)
    net.conv(16, 16, 1)
    result = outcome(quantised(net), here)
    assert any("softmax" in str(var.name_hint) for var in result.prepared.functions)
    assert result.kernels.count("integer_conv2d") == 2
    assert result.error < 0.02


def test_what_an_activation_cuts_off_an_enlarged_image_is_cut_off(written, here):
    net = Network((1, 16, 4, 4))

    def convolved(image: str) -> str:
        net.conv_of_bytes(image, 16, 16, 1, 1)
        return net.requantised()

    way = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    net.add("Resize", convolved(net.requantised()), "", net.constant(np.array([1, 1, 2, 2], np.float32)), **way)
    net.add("Relu", net.last)
    convolved(net.requantised())
    assert outcome(written(net), here).share == 0


@pytest.mark.parametrize("kind", ["Add", "Mul"])
def test_a_few_channels_of_a_convolution_and_those_of_the_input_are_joined(written, here, kind):
    net = Network((1, 3, 12, 12))
    image = net.requantised(0.02, 128)
    net.conv_of_bytes(image, 3, 3, 3, 3, pads=[1] * 4)
    layer = net.requantised(0.03, 100)
    net.add(kind, layer, image)
    joined = net.requantised(0.04, 120)
    net.add("Add", joined, layer)
    net.conv_of_bytes(net.requantised(0.05, 120), 16, 3, 1, 1)
    net.requantised(0.05, 120)
    assert outcome(written(net), here).share == 0


def test_what_a_convolution_adds_has_the_lanes_of_its_result(written, here):
    net = Network((1, 3, 12, 12))
    image = net.requantised()
    net.conv_of_bytes(image, 3, 3, 1, 1)
    net.add("Add", net.requantised(), image)
    net.requantised()
    prepared = prepare(read_model(written(net), {}).module, here)
    values = [item.value for block in prepared["main"].body.blocks for item in block.bindings]
    (call,) = (value for value in values if str(value.args[0].name_hint).startswith("integer_conv2d_add"))
    shapes = [[int(size) for size in item.ty.shape] for item in call.args[1]]
    data, added = (shape for shape in shapes if len(shape) == 5)
    assert data == [1, 12, 12, 1, 4]
    assert added == [int(size) for size in call.ty.shape] == [1, 12, 12, 1, 16]


@pytest.mark.parametrize("relu", [True, False])
def test_a_bias_of_more_axes_gives_its_axes_to_the_sum(written, here, relu):
    net = Network((5, 20))
    net.requantised()
    net.matmul_of(net.rng.integers(-64, 64, (20, 33), np.int8), 0.005)
    net.add("Add", net.last, net.constant(net.rng.standard_normal((1, 1, 33)).astype(np.float32)))
    if relu:
        net.add("Relu", net.last)
    result = outcome(written(net), here)
    assert [int(size) for size in result.prepared["main"].ret_ty.shape] == [1, 5, 33]
    assert result.error < 1e-6


def test_the_last_of_two_activations_whose_ranges_do_not_meet_has_the_last_word(written, here):
    net = Network((1, 16, 6, 6))
    layer = net.conv_of_bytes(net.requantised(), 16, 16, 1, 1)
    net.add("Min", layer, net.constant(np.float32(-0.5)))
    net.add("Relu", net.last)
    net.requantised()
    prepared = prepare(read_model(written(net), {}).module, here)
    data = net.rng.standard_normal(net.shape).astype(np.float32)
    assert not computed(prepared, [], here, data).any()


def test_weights_of_16_bits_have_sums_that_are_too_large_for_integers(written, here):
    net = Network((5, 1024), opset=21)
    net.requantised()
    numbers = net.rng.integers(20000, 30000, (1024, 32)).astype(np.int16)
    net.matmul_of(numbers, 1e-5)
    assert outcome(written(net), here).error < 1e-4
