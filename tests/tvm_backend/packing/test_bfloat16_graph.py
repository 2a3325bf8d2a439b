"""Convolutions and products compute in bfloat16, with sums in float32, and what lies between stays in bfloat16."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import helper, numpy_helper

from autotune.tvm_backend.intrinsics.bfloat16 import numbers, rounded
from autotune.tvm_backend.isa.instruction_sets import cpu_flags
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search.tasks import extract_tasks

from ..quantised_nets import Network, computed, cpu_target

_CPUS = {"sapphirerapids": "amx_bf16", "cooperlake": "avx512_bf16"}
_BEST = next((name for name in _CPUS if _CPUS[name] in cpu_flags()), None)
_ROUNDED = 2**-7  # what rounding of each layer's output may change, of the largest value
_SUMMED = 1e-5  # what another order of summing may


@pytest.fixture(params=[pytest.param(name, marks=() if name == _BEST else pytest.mark.slow) for name in _CPUS])
def cpu(request, target):
    """One kind of CPU after the other, of those whose instructions this one has."""
    return cpu_target(request.param, _CPUS[request.param])


class Outcome(NamedTuple):
    """What the product makes of a network.

    Attributes:
        tasks: The names of its tasks, without numbers.
        kernels: Those of all kernels, of which some need no tuning.
    """

    tasks: list[str]
    kernels: list[str]


@pytest.fixture
def compiled(tmp_path):
    """A function that compiles a network in bfloat16, and checks which products it has and how exact it is.

    The reference is ONNX Runtime with the weights and the input rounded.
    """

    def run(network: Network, target, products: list[str], error: float) -> Outcome:
        path = tmp_path / "network.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(network.model()), path)
        prepared = prepare(read_model(path, {}).module, target, precision="bf16")
        tasks = extract_tasks(prepared, target)
        data = numbers(rounded(np.random.default_rng(2).standard_normal(network.shape)))
        result = computed(prepared, [task.program for task in tasks], target, data)
        names = sorted(task.spec.name.rstrip("0123456789_") for task in tasks)
        kernels = sorted(item.name_hint.rstrip("0123456789") for item in prepared.get_global_vars())
        assert [name for name in names if name.startswith("bfloat16")] == products
        assert difference(result, reference(network, data)) < error
        return Outcome(names, kernels)

    return run


def reference(network: Network, data):
    model = network.model()
    for constant in model.graph.initializer:
        values = numpy_helper.to_array(constant)
        if values.ndim > 1 and values.shape[1] > 1:  # weights, but for those of depthwise convolutions
            constant.CopyFrom(numpy_helper.from_array(numbers(rounded(values)), constant.name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"input": data})[0]


def difference(result, expected) -> float:
    assert result.shape == expected.shape
    return float(np.abs(result - expected).max() / np.abs(expected).max())


def test_a_classifier_stays_in_bfloat16_from_end_to_end(compiled, cpu):
    net = Network((2, 3, 13, 12))
    net.add("Relu", net.conv(3, 24, strides=[2, 2], pads=[1, 1, 1, 1]))
    skipped = net.conv(24, 32, 1)
    net.add("Relu", net.conv(32, 32, pads=[1, 1, 1, 1], group=32))
    net.add("Relu", net.add("Add", net.conv(32, 32, 1), skipped))
    net.add("MaxPool", net.last, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.add("GlobalAveragePool", net.last)
    net.add("Flatten", net.last)
    net.gemm(32, 10)
    result = compiled(
        net, cpu, ["bfloat16_conv2d"] * 3 + ["bfloat16_depthwise_conv2d", "bfloat16_matmul"], 2 * _ROUNDED
    )
    assert not any("conv2d_NCHWc" in name for name in result.tasks)


@pytest.mark.parametrize("window", [{"strides": [2, 2]}, {"dilations": [2, 2]}])
def test_a_convolution_is_rounded_nowhere_but_in_its_operands(compiled, cpu, window):
    net = Network((1, 40, 9, 15))
    net.conv(40, 24, pads=[1, 2, 1, 0], **window)
    compiled(net, cpu, ["bfloat16_conv2d"], _SUMMED)


_FEW = {  # channels, the size of the window, and its strides, dilations and padding
    "of three": (3, 7, {"strides": [2, 2], "pads": [3, 3, 3, 3]}, True),
    "of one": (1, 3, {"strides": [1, 2], "pads": [0, 1, 2, 0]}, True),
    "of three, step by step": (3, 3, {"pads": [1, 1, 1, 1]}, False),
    "of three, dilated": (3, 3, {"strides": [2, 2], "dilations": [1, 2]}, False),
}


@pytest.mark.parametrize("name", _FEW)
def test_a_convolution_of_few_channels_reads_lines_of_pairs_where_windows_begin_with_one(compiled, cpu, name):
    channels, size, window, by_lines = _FEW[name]
    net = Network((2, channels, 13, 38))
    net.conv(channels, 24, size, **window)
    error = _SUMMED if channels > 1 else _ROUNDED  # the reference has the weights of one channel in float32
    result = compiled(net, cpu, ["bfloat16_conv2d"], error)
    read = {"bfloat16_lines", "bfloat16_pack"} & set(result.kernels)
    assert read == {"bfloat16_lines" if by_lines else "bfloat16_pack"}


@pytest.mark.parametrize(("channels", "groups"), [((48, 96), 3), ((40, 20), 5)])
def test_a_convolution_of_groups_is_rounded_nowhere_but_in_its_operands(compiled, cpu, channels, groups):
    net = Network((2, channels[0], 7, 9))
    net.conv(*channels, pads=[1, 1, 1, 1], strides=[1, 2], group=groups)
    result = compiled(net, cpu, ["bfloat16_conv2d"], _SUMMED)
    assert not any("conv2d_NCHWc" in name for name in result.tasks)


def test_between_images_and_rows_nothing_is_permuted(compiled, cpu):
    net = Network((1, 32, 6, 7))
    net.images_and_rows()
    products = ["bfloat16_conv2d", "bfloat16_depthwise_conv2d", "bfloat16_matmul", "bfloat16_matmul"]
    result = compiled(net, cpu, products, 3 * _ROUNDED)
    assert sum("transpose" in name for name in result.kernels) == 1, "of the result"


def normalised(net, channels):
    scale = net.constant(np.linspace(0.5, 1.5, channels).astype(np.float32))
    return net.add("LayerNormalization", net.last, scale, net.constant(np.zeros(channels, np.float32)), axis=-1)


def test_a_layer_normalisation_before_products_writes_what_they_read(compiled, cpu):
    net = Network((1, 7, 48))
    net.matmul(48, 96)
    normalised(net, 96)
    net.matmul(96, 48)
    normalised(net, 48)
    net.matmul(48, 32)
    result = compiled(net, cpu, ["bfloat16_matmul"] * 3, 3 * _ROUNDED)
    assert result.kernels.count("bfloat16_layer_norm") == 2
    assert not any(name.startswith("layer_norm") for name in result.kernels)
    assert result.kernels.count("bfloat16_convert") == 1, "of the input"


def test_a_layer_normalisation_that_is_added_to_stays_in_float32(compiled, cpu):
    net = Network((1, 7, 48))
    net.matmul(48, 48)
    skipped = normalised(net, 48)
    net.add("Add", net.matmul(48, 48), skipped)
    result = compiled(net, cpu, ["bfloat16_matmul"] * 2, 2 * _ROUNDED)
    assert "layer_norm_rows" in result.kernels
    assert "bfloat16_layer_norm" not in result.kernels


def test_a_permuted_input_that_no_product_reads_stays_in_float32(compiled, cpu):
    net = Network((1, 7, 7, 64))
    net.add("Transpose", "input", perm=[0, 3, 1, 2])
    net.add("Add", net.last, net.constant(np.ones((1, 64, 1, 1), np.float32)))
    result = compiled(net, cpu, [], _SUMMED)
    assert not any(name.startswith("bfloat16") for name in result.kernels)


def test_rows_that_a_product_without_a_kernel_reads_stay_in_float32(compiled, cpu):
    net = Network((1, 32, 8, 16))
    net.last = "input"
    normalised(net, 16)
    net.conv(32, 32)
    result = compiled(net, cpu, ["bfloat16_conv2d"], _ROUNDED)
    assert "bfloat16_layer_norm" not in result.kernels, "to the convolution its last axis is no channels"
    assert "bfloat16_conv2d" in result.kernels


def test_what_follows_a_convolution_is_a_part_of_its_kernel(compiled, cpu):
    net = Network((1, 16, 6, 6))
    value = net.conv(16, 32)
    value = net.add("Mul", net.add("Sigmoid", value), value)
    net.conv(32, 16, 1)
    net.add("HardSwish", net.last)
    compiled(net, cpu, ["bfloat16_conv2d"] * 2, _ROUNDED)


def test_many_layers_with_a_split_after_each(compiled, cpu):
    """What a layer reads is asked for once: asked for twice by each, it would take hours."""
    net = Network((1, 16, 2, 2))
    halves = net.constant(np.array([16, 16], np.int64))
    for number in range(24):
        part = f"part{number}"
        net.nodes.append(helper.make_node("Split", [net.conv(16, 32, 1), halves], [part, f"rest{number}"], axis=1))
        net.last = part
    net.conv(16, 16, 1)
    result = compiled(net, cpu, ["bfloat16_conv2d"] * 2, 8 * _ROUNDED)  # the last layer writes float32
    assert not any("split" in name for name in result.kernels)


def test_a_value_that_several_operators_read(compiled, cpu):
    net = Network((1, 16, 6, 6))
    shared = net.add("Relu", net.conv(16, 32, pads=[1, 1, 1, 1]))
    other = net.conv(32, 32, pads=[1, 1, 1, 1])
    scale = net.add("Sigmoid", net.add("GlobalAveragePool", other))
    net.add("Add", net.add("Mul", other, scale), shared)
    net.add("Concat", net.last, shared, axis=1)
    net.conv(64, 10, 1)
    compiled(net, cpu, ["bfloat16_conv2d"] * 3, 2 * _ROUNDED)


def test_parts_of_channels_and_enlarged_images_stay_in_bfloat16(compiled, cpu):
    """As in a detector: channels are split, one part goes on, and all are put together; an image is enlarged."""
    net = Network((1, 16, 6, 6))
    net.add("Relu", net.conv(16, 64, pads=[1, 1, 1, 1]))
    net.nodes.append(helper.make_node("Split", [net.last], ["first", "second"], axis=1))
    net.last = "second"
    value = net.add("Add", net.add("Relu", net.conv(32, 32, pads=[1, 1, 1, 1])), "second")
    net.add("Concat", "first", "second", value, axis=1)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    net.add("Resize", net.conv(96, 48, 1), "", scales, mode="nearest", **modes)
    bounds = [net.constant(np.array([number])) for number in (16, 48, 1)]
    net.add("Slice", net.last, *bounds)
    net.conv(32, 16, 1)
    result = compiled(net, cpu, ["bfloat16_conv2d"] * 4, 3 * _ROUNDED)
    assert {"bfloat16_slice", "bfloat16_enlarge", "bfloat16_concat"} < set(result.kernels)
    assert not [name for name in result.kernels if "split" in name or "resize" in name or "strided" in name]
    assert result.kernels.count("bfloat16_pack") == 1, "of the input"


def test_a_split_that_others_read_too_is_there_for_them(compiled, cpu):
    net = Network((1, 16, 6, 6))
    net.add("Relu", net.conv(16, 48, pads=[1, 1, 1, 1]))
    net.nodes.append(helper.make_node("Split", [net.last], ["first", "second"], axis=1))
    net.nodes.append(helper.make_node("Softmax", ["second"], ["soft"], axis=1))
    net.last = "first"
    net.add("Add", net.add("Relu", net.conv(24, 24, pads=[1, 1, 1, 1])), "soft")
    result = compiled(net, cpu, ["bfloat16_conv2d"] * 2, 2 * _ROUNDED)
    assert any("softmax" in name for name in result.kernels)


def test_rows_between_operators_in_float32(compiled, cpu):
    net = Network((1, 5, 32))
    net.add("Relu", net.matmul(32, 48))
    net.add("Softmax", net.matmul(48, 32), axis=-1)
    value = net.last
    net.matmul(32, 33)
    net.add("Add", net.matmul(33, 32), value)
    compiled(net, cpu, ["bfloat16_matmul"] * 4, 2 * _ROUNDED)


def test_products_of_two_values(compiled, cpu):
    net = Network((2, 16, 32))
    query = net.matmul(32, 48)
    net.add("Transpose", "input", perm=[0, 2, 1])
    scores = net.add("Softmax", net.add("MatMul", "input", net.last), axis=-1)
    net.add("MatMul", scores, query)
    compiled(net, cpu, ["bfloat16_batch_matmul"] * 2 + ["bfloat16_matmul"], 2 * _ROUNDED)


def test_gelu_is_a_part_of_the_kernel_before_it(compiled, cpu):
    net = Network((5, 32))
    value = net.gemm(32, 48)
    half, one, root = (net.constant(np.float32(number)) for number in (0.5, 1.0, np.sqrt(2.0)))
    net.add("Add", net.add("Erf", net.add("Div", value, root)), one)
    net.add("Mul", net.add("Mul", value, net.last), half)
    compiled(net, cpu, ["bfloat16_matmul"], 1e-4)


_SHARED = {  # what are the products, and what stays in float32
    "product first": (["bfloat16_matmul"], "conv2d_NCHWc_add"),
    "convolution first": (["bfloat16_conv2d"], "packed_matmul"),
    "both": (["bfloat16_matmul"], "conv2d_NCHWc_add"),
}


@pytest.mark.parametrize("case", _SHARED)
def test_rows_of_one_operator_that_are_the_image_of_another_are_not_converted_for_it(compiled, cpu, case):
    network = Network((1, 16, 8, 32))
    if case == "product first":
        network.conv(16, 32, of=network.matmul(32, 16))
    elif case == "convolution first":
        network.conv(16, 16, 1)
        network.matmul(32, 16)
    else:
        soft = network.add("Softmax", "input", axis=-1)
        image = network.conv(16, 16, 1, of=soft)
        network.last = soft
        network.add("Add", image, network.matmul(32, 32))
    products, plain = _SHARED[case]
    result = compiled(network, cpu, products, _ROUNDED)
    assert plain in result.tasks


def test_the_last_windows_of_a_pooling_that_is_rounded_up_end_with_the_image(compiled, cpu):
    network = Network((1, 16, 8, 8))
    network.conv(16, 32, 1)
    network.add("MaxPool", network.last, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    result = compiled(network, cpu, ["bfloat16_conv2d"], 2 * _ROUNDED)
    assert [name for name in result.kernels if "max_pool" in name] == ["bfloat16_max_pool"]


def test_without_instructions_for_it_only_products_that_read_many_weights_are_in_bfloat16(compiled, target):
    older = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    net = Network((2, 1024))
    net.gemm(1024, 1040)
    net.gemm(1040, 16)
    compiled(net, older, ["bfloat16_matmul"], 2 * _ROUNDED)
