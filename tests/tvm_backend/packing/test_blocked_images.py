"""Packed networks compute what ONNX Runtime computes, and stay packed between their convolutions."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from autotune.tvm_backend.packing.blocked_images import pack_layouts

from ..packed_nets import Build, Net, assert_same, check, imported, operators, packed, run, transforms
from ..relax_functions import function


@pytest.mark.parametrize(
    ("channels", "packs", "attrs"),
    [
        (3, 0, {}),  # too few: read as they are
        (17, 0, {}),  # awkward
        (16, 1, {"strides": [2, 1], "pads": [0, 1, 2, 0]}),
        (24, 1, {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
        (28, 1, {"pads": [0, 0, 0, 0], "dilations": [1, 2], "strides": [3, 2]}),
    ],
)
def test_the_channels_of_an_input_are_packed_before_any_window(
    channels: int, packs: int, attrs: dict[str, Any]
) -> None:
    counts = check(lambda net: net.conv("x", channels, 32, **attrs), 1, channels, 13, 11)
    assert counts["conv2d_NCHWc"] == 1
    assert counts["layout_pack"] == packs


@pytest.mark.parametrize("channels", [24, 28])
def test_output_channels(channels: int) -> None:
    build: Build = lambda net: net.conv(net.conv("x", 3, channels), channels, 16, 1)  # noqa: E731
    counts = check(build, 2, 3, 8, 8, conversions=1)
    assert counts["conv2d_NCHWc"] == 2


def test_awkward_output_stays_plain() -> None:
    counts = check(lambda net: net.conv(net.op("Relu", net.conv("x", 16, 17)), 17, 6), 1, 16, 8, 8)
    assert counts["relax.nn.conv2d"] == 2


@pytest.mark.parametrize(("channels", "attrs"), [(24, {"strides": [2, 2]}), (28, {"dilations": [2, 2]})])
def test_depthwise(channels: int, attrs: dict[str, Any]) -> None:
    def build(net: Net) -> str:
        bounds = net.given(np.float32(0)), net.given(np.float32(6))
        first = net.op("Clip", net.conv("x", 3, channels, 1), *bounds)
        inner = net.conv(first, channels, channels, group=channels, pads=[1, 1, 1, 1], **attrs)
        return net.conv(net.op("Relu", inner), channels, 16, 1)

    counts = check(build, 1, 3, 10, 10, conversions=1)
    assert counts["depthwise_conv2d_NCHWc"] == 1


def test_depthwise_of_a_plain_input_stays_plain() -> None:
    assert check(lambda net: net.conv("x", 32, 32, group=32), 1, 32, 6, 6)["relax.nn.conv2d"] == 1


def test_depthwise_of_a_permuted_input_is_packed_in_place_of_that() -> None:
    def build(net: Net) -> str:
        return net.conv(net.op("Transpose", "x", perm=[0, 3, 1, 2]), 32, 32, group=32)

    assert check(build, 1, 6, 6, 32)["depthwise_conv2d_NCHWc"] == 1


@pytest.mark.parametrize(("channels", "outputs", "groups"), [(32, 64, 2), (48, 32, 4), (12, 24, 4)])
def test_groups(channels: int, outputs: int, groups: int) -> None:
    def build(net: Net) -> str:
        return net.conv(net.op("Relu", net.conv("x", 3, channels)), channels, outputs, group=groups)

    counts = check(build, 1, 3, 7, 7)
    assert counts["group_conv2d_NCHWc"] == (channels // groups >= 8 and outputs // groups >= 8)


def test_chain_has_no_conversion_inside() -> None:
    def build(net: Net) -> str:
        x = net.op("Relu", net.conv("x", 3, 32))
        x = net.op("LeakyRelu", net.conv(x, 32, 48), alpha=0.1)
        return net.conv(net.op("Sigmoid", net.conv(x, 48, 24)), 24, 64, 1)

    counts = check(build, 1, 3, 8, 8, conversions=1)
    assert counts["layout_unpack"] == 1
    assert counts["conv2d_NCHWc"] == 4


def test_tensors_are_joined_in_blocks() -> None:
    def build(net: Net) -> str:
        x = net.op("Relu", net.conv("x", 3, 32))
        x = net.op("Relu", net.op("Add", net.conv(x, 32, 32), x))
        x = net.op("Max", net.conv(x, 32, 32), net.constant(1, 1, 1, 1))
        for kind in ("Max", "Mean", "Min", "Sum"):
            x = net.op(kind, x, net.conv(x, 32, 32), net.conv(x, 32, 32, 1))
        return x

    check(build, 1, 3, 8, 8, conversions=1)


def test_addition_of_a_plain_tensor() -> None:
    def build(net: Net) -> str:
        return net.conv(net.op("Add", net.op("Softmax", "x", axis=3), net.conv("x", 16, 16)), 16, 16)

    check(build, 1, 16, 6, 6, conversions=3)


def test_constants_that_broadcast() -> None:
    def build(net: Net) -> str:
        x = net.op("Mul", net.conv("x", 3, 28), net.given(np.float32(0.5)))
        x = net.op("Sub", net.constant(28, 1, 1), x)
        x = net.op("Add", x, net.constant(1, 28, 6, 7))
        x = net.op("Max", x, net.constant(1, 1, 1, 7))  # differs along the width: plain
        return net.op("Div", x, net.given(np.float32(3)))

    check(build, 1, 3, 6, 7)


def test_division_where_a_block_is_not_full() -> None:
    def build(net: Net) -> str:
        x = net.conv("x", 3, 28)
        square = net.op("Add", net.op("Mul", x, x), net.given(np.full((1, 28, 1, 1), 0.1, np.float32)))
        return net.conv(net.op("Div", x, net.op("Sqrt", square)), 28, 16)

    check(build, 1, 3, 6, 6)


@pytest.mark.parametrize(("parts", "conversions"), [((16, 32), 1), ((24, 16), 2), ((16, 6), 3), ((28, 36), 4)])
def test_concat(parts: tuple[int, ...], conversions: int) -> None:
    def build(net: Net) -> str:
        pieces = [net.op("Relu", net.conv("x", 3, part)) for part in parts]
        return net.conv(net.op("Concat", *pieces, axis=1), sum(parts), 16)

    check(build, 1, 3, 7, 7, conversions=conversions)


@pytest.mark.parametrize(("parts", "conversions"), [((16, 32), 1), ((20, 28), 4)])
def test_a_split_where_chunks_end_needs_no_conversion(parts: tuple[int, ...], conversions: int) -> None:
    def build(net: Net) -> str:
        names = [f"part{index}" for index in range(len(parts))]
        whole = net.conv("x", 3, sum(parts))
        net.nodes.append(helper.make_node("Split", [whole, net.given(np.array(parts))], names, axis=1))
        first, *others = (net.conv(name, size, 16) for name, size in zip(names, parts, strict=True))
        return reduce(lambda left, right: net.op("Add", left, right), others, first)

    check(build, 1, 3, 7, 7, conversions=conversions)


def test_concat_of_height_stays_right() -> None:
    check(lambda net: net.op("Concat", net.conv("x", 3, 16), net.conv("x", 3, 16), axis=2), 1, 3, 5, 5)


POOLS = (
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1], "strides": [2, 2]}),
    ("MaxPool", {"kernel_shape": [2, 3], "ceil_mode": 1, "strides": [2, 2]}),
)


def test_pools_and_sums_of_images_need_no_conversion() -> None:
    def build(net: Net) -> str:
        x = net.conv("x", 3, 28)
        for kind, attrs in POOLS:
            x = net.conv(net.op(kind, x, **attrs), 28, 28, 1)
        mean = net.op("GlobalAveragePool", x)
        total = net.op("ReduceSum", x, net.given(np.array([2, 3])))
        return net.conv(net.op("Add", mean, total), 28, 16, 1)

    counts = check(build, 1, 3, 25, 24, conversions=0)
    assert counts["conv2d_NCHWc"] == 2 + len(POOLS)


@pytest.mark.parametrize(("axes", "conversions"), [((2, 3), 1), ((1, 2), 2)])
def test_slices_of_height_and_width_need_no_conversion(axes: tuple[int, ...], conversions: int) -> None:
    def build(net: Net) -> str:
        bounds = [net.given(np.array([value] * len(axes))) for value in (1, 7)]
        sliced = net.op(
            "Slice", net.conv("x", 3, 32), *bounds, net.given(np.array(axes)), net.given(np.array([2] * len(axes)))
        )
        return net.conv(sliced, 3 if 1 in axes else 32, 16, 1)

    check(build, 1, 3, 9, 8, conversions=conversions)


@pytest.mark.parametrize(
    ("widths", "value", "channels", "conversions"),
    [
        ((0, 0, 1, 2, 0, 0, 3, 0), 0.5, 28, 1),
        ((0, 0, 1, 0, 0, 0, 0, 0), -np.inf, 32, 1),
        ((0, 0, 1, 0, 0, 0, 0, 0), -np.inf, 28, 3),  # a lane without a channel would be infinite, too
        ((0, 2, 1, 0, 0, 2, 0, 0), 0.5, 28, 3),  # channels as well
    ],
)
def test_padding_of_height_and_width_needs_no_conversion(
    widths: tuple[int, ...], value: float, channels: int, conversions: int
) -> None:
    def build(net: Net) -> str:
        image = net.op("Relu", net.conv("x", 3, channels))
        padded = net.op("Pad", image, net.given(np.array(widths, np.int64)), net.given(np.float32(value)))
        pooled = net.op("MaxPool", padded, kernel_shape=[2, 2], strides=[1, 1])
        return net.conv(net.op("Relu", pooled), channels + widths[1] + widths[5], 16, 1)

    check(build, 1, 3, 9, 10, conversions=conversions)


def test_resize() -> None:
    def build(net: Net) -> str:
        scales = net.given(np.array([1, 1, 2, 2], np.float32))
        return net.conv(net.op("Resize", net.conv("x", 3, 16), "", scales, mode="linear"), 16, 16)

    check(build, 1, 3, 5, 6, conversions=1)


def test_mean_then_dense_layer() -> None:
    def build(net: Net) -> str:
        pooled = net.op("ReduceMean", net.op("Relu", net.conv("x", 3, 32)), axes=[2, 3], keepdims=0)
        return net.op("Gemm", pooled, net.constant(32, 10), net.constant(10))

    check(build, 2, 3, 6, 6, conversions=0)


@pytest.mark.parametrize(("channels", "axis", "conversions"), [(16, 1, 0), (28, 1, 1), (16, 2, 1)])
def test_a_dense_layer_of_whole_blocks_takes_them_as_they_lie(channels: int, axis: int, conversions: int) -> None:
    def build(net: Net) -> str:
        flat = net.op("Flatten", net.op("Relu", net.conv("x", 3, channels)), axis=axis)
        rows = channels * 30 if axis == 1 else 30
        return net.op("Gemm", flat, net.constant(rows, 10), net.constant(10))

    check(build, 2, 3, 5, 6, conversions=conversions)


def test_local_response_normalisation() -> None:
    def build(net: Net) -> str:
        normal = net.op("LRN", net.op("Relu", net.conv("x", 3, 32)), size=5, alpha=0.1, beta=0.75, bias=2.0)
        return net.conv(net.op("MaxPool", normal, kernel_shape=[2, 2]), 32, 16)

    assert check(build, 1, 3, 8, 8)["conv2d_NCHWc"] == 2


def test_squeeze_and_excite() -> None:
    def build(net: Net) -> str:
        x = net.conv("x", 3, 32)
        gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", x), 32, 8, 1))
        gate = net.op("HardSigmoid", net.conv(gate, 8, 32, 1))
        return net.conv(net.op("Mul", x, gate), 32, 32, 1)

    check(build, 1, 3, 6, 6, conversions=1)


def test_channel_shuffle() -> None:
    def build(net: Net) -> str:
        x = net.op("Reshape", net.conv("x", 3, 32), net.given(np.array([1, 2, 16, 6, 6])))
        x = net.op("Transpose", x, perm=[0, 2, 1, 3, 4])
        x = net.op("Reshape", x, net.given(np.array([1, 32, 6, 6])))
        return net.conv(x, 32, 32, group=2)

    check(build, 1, 3, 6, 6, conversions=3)


@pytest.mark.parametrize("bounds", [{"min": 0.0, "max": 6.0}, {"min": -0.5}])
def test_clip_with_attributes(bounds: dict[str, float]) -> None:
    net = Net(1, 3, 8, 8)
    model = net.model(net.conv(net.op("Clip", net.conv("x", 3, 32), **bounds), 32, 16))
    model.opset_import[0].version = 10
    module = pack_layouts(imported(model))
    assert_same(model, module)
    assert transforms(module) == 1


def test_two_consumers_share_one_conversion() -> None:
    def build(net: Net) -> str:
        x = net.op("Relu", net.conv("x", 3, 32))
        plain = net.op("Add", net.op("Softmax", x, axis=3), net.op("Softmax", x, axis=2))
        return net.op("Add", net.conv(x, 32, 32), plain)

    check(build, 1, 3, 6, 6, conversions=3)  # for the two softmaxes, of their sum, of the result


def test_outputs_and_attributes_stay() -> None:
    net = Net(1, 3, 6, 6)
    x = net.conv("x", 3, 32)
    model = net.model(net.op("Relu", net.conv(x, 32, 16)), x, net.op("GlobalAveragePool", x))
    before = imported(model)
    after = pack_layouts(before)
    assert_same(model, after)
    assert after["main"].ty == before["main"].ty
    assert dict(before["main"].attrs).items() <= dict(after["main"].attrs).items()
    assert [param.name for param in after["main"].params] == ["x"]


def test_same_model_gives_equal_modules() -> None:
    build: Build = lambda net: net.conv(net.conv("x", 3, 24), 24, 28)  # noqa: E731
    tvm.ir.assert_structural_equal(packed(build, 1, 3, 6, 6)[1], packed(build, 1, 3, 6, 6)[1])


def test_fewer_lanes() -> None:
    net = Net(1, 3, 8, 8)
    model = net.model(net.conv(net.conv("x", 3, 32), 32, 8))
    module = pack_layouts(imported(model), lanes=8)
    assert_same(model, module)
    assert transforms(module) == 1


def test_weights_that_are_inputs_and_symbolic_shapes_stay_plain() -> None:
    given = function(lambda _, x, w: relax.op.nn.conv2d(x, w), (1, 16, 5, 5), (16, 16, 3, 3))
    assert operators(pack_layouts(given)) == {"relax.nn.conv2d": 1}
    weight = relax.const(np.zeros((16, 16, 3, 3), "float32"))
    build = lambda emit, x: relax.op.nn.relu(emit(relax.op.nn.conv2d(x, weight)))  # noqa: E731
    symbolic = function(build, (1, 16, tvm.tirx.Var("h", "int64"), 5))
    assert operators(pack_layouts(symbolic)) == {"relax.nn.conv2d": 1, "relax.nn.relu": 1}


def test_several_blocks() -> None:
    data = relax.Var("x", relax.TensorType((1, 16, 5, 5), "float32"))
    builder = relax.BlockBuilder()
    weight = relax.const(np.ones((16, 16, 1, 1), "float32"))
    with builder.function("main", [data]):
        first = builder.emit(relax.op.nn.conv2d(data, weight))
        with builder.dataflow():
            second = builder.emit_output(relax.op.add(relax.op.nn.conv2d(first, weight), first))
        builder.emit_func_output(builder.emit(relax.op.nn.relu(second)))
    module = pack_layouts(builder.get())
    assert operators(module)["conv2d_NCHWc"] == 2
    np.testing.assert_allclose(run(module, np.ones((1, 16, 5, 5), "float32"))[0], 272)
