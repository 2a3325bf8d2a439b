"""Quantised networks compute in integers, and put out what ONNX Runtime does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from onnxruntime.quantization import QuantType
from tvm import relax

from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.passes.prepare import prepare
from tests.tvm_backend.integer.conftest import Network, differences, kernels

_IMAGE = (1, 3, 12, 12)


def classifier(shape=_IMAGE) -> Network:
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


def test_a_classifier_is_integer_kernels_from_end_to_end(quantised, cpu):
    assert sorted(kernels(quantised(classifier()), cpu)) == [
        "integer_conv2d",
        "integer_conv2d",
        "integer_conv2d",
        "integer_conv2d_add",
        "integer_depthwise_conv2d",
        "reshape_strided_slice_dequantize",
    ]


@pytest.mark.parametrize(
    ("activations", "per_channel"),
    [
        (QuantType.QUInt8, True),
        (QuantType.QInt8, False),
        pytest.param(QuantType.QUInt8, False, marks=pytest.mark.slow),
        pytest.param(QuantType.QInt8, True, marks=pytest.mark.slow),
    ],
)
def test_a_classifier_equals_onnx_runtime(quantised, cpu, activations, per_channel):
    path = quantised(classifier(), activations=activations, per_channel=per_channel)
    assert differences(path, cpu) == (0.0, 0.0)


def test_bounds_of_a_layer_are_those_of_its_bytes(written, here):
    net = Network((1, 16, 6, 6))
    net.requantised()
    for bounds in [(-0.3, 0.7), (0.0,)]:
        layer = net.conv_of_bytes(net.last, 16, 16, 1, 1)
        net.add("Clip", layer, *(net.constant(np.float32(bound)) for bound in bounds))
        net.requantised()
    path = written(net)
    share, _ = differences(path, here)
    assert share < 0.01, "ONNX Runtime computes such layers in floats"
    assert sorted(kernels(path, here)) == ["integer_conv2d", "reshape_transpose_dequantize"]


def test_between_images_and_rows_bytes_are_not_permuted(quantised, here):
    net = Network((1, 32, 6, 7))
    net.images_and_rows()
    path = quantised(net)
    assert sum("transpose" in name for name in kernels(path, here)) == 1, "of the result"
    assert differences(path, here)[1] < 0.02, "a few bytes differ by one: products that are added in another order"


def test_a_batch_of_images(quantised, cpu):
    assert differences(quantised(classifier((2, 3, 13, 9))), cpu) == (0.0, 0.0)


def test_rows_of_pixels_that_are_no_whole_vectors(quantised, cpu):
    assert differences(quantised(classifier((2, 3, 9, 21))), cpu) == (0.0, 0.0)


def test_an_addition_of_what_several_operators_read(quantised, cpu):
    net = Network((1, 16, 6, 6))
    shared = net.conv(16, 16)
    net.add("Add", net.conv(16, 16, 1), shared)
    net.add("Add", net.last, shared)
    path = quantised(net)
    assert differences(path, cpu) == (0.0, 0.0)


def test_a_concatenation_of_images_with_other_scales(quantised, cpu):
    net = Network((1, 16, 6, 6))
    parts = [net.conv(16, outputs, 1, of="input") for outputs in (16, 48)]
    net.add("Concat", *parts, axis=1)
    net.conv(64, 16)
    assert differences(quantised(net), cpu) == (0.0, 0.0)


@pytest.mark.parametrize("without", [(), ("split",)], ids=["one scale", "scales of their own"])
def test_parts_of_channels_that_were_split(quantised, cpu, without):
    net = Network((1, 16, 6, 6))
    net.nodes.append(helper.make_node("Split", [net.conv(16, 48)], ["first", "second"], "split", axis=1))
    split = net.constant(np.array([16, 32]))
    net.nodes[-1].input.append(split)
    net.last = "second"
    net.add("Concat", "first", net.add("Relu", net.conv(32, 16, 1)), axis=1)
    net.conv(32, 16)
    path = quantised(net, without=without)
    assert differences(path, cpu) == (0.0, 0.0)
    prepared = prepare(read_model(path, {}).module, cpu)
    names = [item.name_hint for item in prepared.get_global_vars()]
    assert any("integer_slice" in name for name in names)
    assert not [name for name in names if "split" in name]


def test_rows_that_are_no_whole_vectors(quantised, cpu):
    net = Network((5, 20))
    net.add("Relu", net.gemm(20, 33))
    net.matmul(33, 7)
    assert differences(quantised(net), cpu) == (0.0, 0.0)


def test_functions_of_one_value_are_one_table(quantised, cpu):
    net = Network((1, 16, 6, 6))
    value = net.conv(16, 16)
    net.add("Mul", net.add("Sigmoid", value), value)
    net.conv(16, 16, 1)
    path = quantised(net)
    share, error = differences(path, cpu)
    assert "integer_table" not in kernels(path, cpu)  # it needs no search
    assert share < 0.05 and error < 0.02  # ONNX Runtime's logistic function is a polynomial


def test_what_has_no_integer_kernel_stays_in_floats(quantised, cpu):
    net = Network((1, 16, 6, 6))
    net.conv(16, 16)
    net.add("Softmax", net.last, axis=1)
    net.conv(16, 16, 1)
    names = kernels(quantised(net), cpu)
    assert any("softmax" in name for name in names)
    assert sum(name.startswith("integer_conv2d") for name in names) == 2


def test_what_an_activation_cuts_off_an_enlarged_image_is_cut_off(written, here):
    net = Network((1, 16, 4, 4))

    def convolved(image: str) -> str:
        net.conv_of_bytes(image, 16, 16, 1, 1)
        return net.requantised()

    way = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    net.add("Resize", convolved(net.requantised()), "", net.constant(np.array([1, 1, 2, 2], np.float32)), **way)
    net.add("Relu", net.last)
    convolved(net.requantised())
    assert differences(written(net), here) == (0, 0)


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
    assert differences(written(net), here) == (0, 0)


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
    quantity = (net.constant(np.float32(0.02)), net.constant(np.uint8(128)))
    rows = net.add("DequantizeLinear", net.add("QuantizeLinear", net.last, *quantity), *quantity)
    numbers = net.constant(net.rng.integers(-64, 64, (20, 33), np.int8))
    weight = net.add("DequantizeLinear", numbers, net.constant(np.float32(0.005)), net.constant(np.int8(0)))
    net.add("MatMul", rows, weight)
    net.add("Add", net.last, net.constant(net.rng.standard_normal((1, 1, 33)).astype(np.float32)))
    if relu:
        net.add("Relu", net.last)
    prepared = prepare(read_model(written(net), {}).module, here)
    assert [int(size) for size in prepared["main"].ret_ty.shape] == [1, 5, 33]
    assert differences(written(net), here)[1] < 1e-6


def test_the_last_of_two_activations_whose_ranges_do_not_meet_has_the_last_word(written, here):
    net = Network((1, 16, 6, 6))
    quantity = (net.constant(np.float32(0.02)), net.constant(np.uint8(128)))
    image = net.add("DequantizeLinear", net.add("QuantizeLinear", net.last, *quantity), *quantity)
    numbers = net.constant(net.rng.integers(-64, 64, (16, 16, 1, 1), np.int8))
    weight = net.add("DequantizeLinear", numbers, net.constant(np.float32(0.005)), net.constant(np.int8(0)))
    net.add("Min", net.add("Conv", image, weight), net.constant(np.float32(-0.5)))
    net.add("Relu", net.last)
    net.add("DequantizeLinear", net.add("QuantizeLinear", net.last, *quantity), *quantity)
    prepared = prepare(read_model(written(net), {}).module, here)
    machine = relax.VirtualMachine(compile_tuned(prepared, [], {}, here), tvm.cpu())
    data = net.rng.standard_normal(net.shape).astype(np.float32)
    assert not machine["main"](tvm.runtime.tensor(data)).numpy().any()


def test_weights_of_16_bits_have_sums_that_are_too_large_for_integers(written, here):
    net = Network((5, 1024), opset=21)
    quantity = (net.constant(np.float32(0.02)), net.constant(np.uint8(128)))
    rows = net.add("DequantizeLinear", net.add("QuantizeLinear", net.last, *quantity), *quantity)
    numbers = net.constant(net.rng.integers(20000, 30000, (1024, 32)).astype(np.int16))
    scale = net.constant(np.float32(1e-5))
    net.add("MatMul", rows, net.add("DequantizeLinear", numbers, scale, net.constant(np.int16(0))))
    assert differences(written(net), here)[1] < 1e-4
