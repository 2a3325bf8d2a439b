"""Quantised networks of TensorFlow Lite are the same integer kernels, and put out what LiteRT does."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from autotune.tvm_backend.export.runners import litert_runner
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer
from autotune.tvm_backend.models.tflite.program import import_flatbuffer
from autotune.tvm_backend.search.tasks import extract_tasks
from tests.lite_network import Network

from ..quantised_nets import computed

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")
_RNG = np.random.default_rng(0)
_BYTE = {"dtype": np.int8}


def weights(net, *shape, axis):
    """Bytes with a scale for each channel, and a bias in their units times those of the input."""
    scale = _RNG.uniform(0.002, 0.004, shape[axis])
    weight = net.quantise(net.constant(_RNG.integers(-127, 128, shape).astype(np.int8)), scale, axis=axis)
    bias = net.constant(_RNG.integers(-500, 500, shape[axis]).astype(np.int32))
    return weight, net.quantise(bias, scale * 0.05)


def classifier(path):
    """Convolutions, depthwise too, with activations, an addition, pools and a product."""
    net = Network()
    window = {"strideH": 1, "strideW": 1, "fusedActivationFunction": net.schema.ActivationFunctionType.RELU6}
    pool = {"filterHeight": 2, "filterWidth": 2, "strideH": 2, "strideW": 2}

    def add(operator, *inputs, shape, scale, zero=-100, kind, **options):
        made = net.add(operator, *inputs, shape=shape, kind=f"{kind}Options", dtype=np.int8, **options)
        return net.quantise(made, scale, zero)

    large = (1, 8, 8, 16)
    x = net.quantise(net.input("x", 1, 8, 8, 3, dtype=np.int8), 0.05, -3)
    dense = weights(net, 16, 3, 3, 3, axis=0)
    one = add("CONV_2D", x, *dense, shape=large, scale=0.05, zero=-128, kind="Conv2D", **window)
    deep = weights(net, 1, 3, 3, 16, axis=3)
    kind = {"kind": "DepthwiseConv2D", "depthMultiplier": 1}
    other = add("DEPTHWISE_CONV_2D", one, *deep, shape=large, scale=0.05, zero=-128, **kind, **window)
    total = add("ADD", one, other, shape=large, scale=0.06, kind="Add")
    high = add("MAX_POOL_2D", total, shape=(1, 4, 4, 16), scale=0.06, kind="Pool2D", **pool)
    mean = add("AVERAGE_POOL_2D", high, shape=(1, 2, 2, 16), scale=0.06, kind="Pool2D", **pool)
    flat = net.constant(np.array([1, 64], np.int32))
    row = add("RESHAPE", mean, flat, shape=(1, 64), scale=0.06, kind="Reshape", newShape=[1, 64])
    matrix = weights(net, 10, 64, axis=0)
    return net.write(
        path, add("FULLY_CONNECTED", row, *matrix, shape=(1, 10), scale=0.1, zero=5, kind="FullyConnected")
    )


class Outcome(NamedTuple):
    """The names of a model's integer kernels, what it puts out, and what LiteRT does."""

    kernels: list[str]
    result: Any
    expected: Any


def outcome(path, target):
    model = import_flatbuffer(Flatbuffer(path), {}, {})
    prepared = prepare(model.module, target)
    tasks = extract_tasks(prepared, target)
    names = sorted(task.spec.name.rstrip("0123456789_") for task in tasks)
    data = _RNG.integers(-128, 128, model.inputs[0].shape).astype(np.int8)
    result = computed(prepared, [task.program for task in tasks], target, data)
    (expected,) = litert_runner(path, [data], 1)()
    assert result.shape == expected.shape and len(np.unique(expected)) > 4
    return Outcome([name for name in names if name.startswith("integer")], result.astype(int), expected)


def test_a_classifier_equals_litert(tmp_path, here):
    kernels, result, expected = outcome(classifier(tmp_path / "quantised.tflite"), here)
    assert kernels == ["integer_conv2d", "integer_conv2d", "integer_conv2d_add"]
    assert np.abs(result - expected).max() <= 1


def one_scale(path):
    """A depthwise convolution whose weights have one scale and yet an axis, and a product of all that it makes."""
    net = Network()
    x = net.quantise(net.input("x", 1, 8, 8, 4, dtype=np.int8), 0.05, -3)
    weight = net.quantise(net.constant(_RNG.integers(-127, 128, (1, 3, 3, 4)).astype(np.int8)), 0.003, axis=3)
    bias = net.quantise(net.constant(_RNG.integers(-500, 500, 4).astype(np.int32)), 0.003 * 0.05)
    window = {"kind": "DepthwiseConv2DOptions", "depthMultiplier": 1, "strideH": 1, "strideW": 1}
    made = net.add("DEPTHWISE_CONV_2D", x, weight, bias, shape=(1, 8, 8, 4), dtype=np.int8, **window)
    matrix = weights(net, 10, 256, axis=0)
    kind = {"kind": "FullyConnectedOptions", "dtype": np.int8}
    return net.write(
        path, net.quantise(net.add("FULLY_CONNECTED", net.quantise(made, 0.05), *matrix, shape=(1, 10), **kind), 0.1)
    )


def test_a_single_scale_is_that_of_all_weights_whatever_its_axis(tmp_path, here):
    _, result, expected = outcome(one_scale(tmp_path / "quantised.tflite"), here)
    assert result.shape == (1, 10)
    assert np.abs(result - expected).max() <= 1


def padded(path):
    """A quantised convolution with valid padding, of an image whose borders, transpose and slice are made before it."""
    net = Network()
    x = net.quantise(net.input("x", 1, 7, 6, 3, dtype=np.int8), 0.05, -3)

    def moved(operator, *inputs, shape, **options):
        return net.quantise(net.add(operator, *inputs, shape=shape, dtype=np.int8, **options), 0.05, -3)

    order = net.constant(np.array([0, 2, 1, 3], np.int32))
    turned = moved("TRANSPOSE", x, order, shape=(1, 6, 7, 3))
    begin, size = (net.constant(np.array(values, np.int32)) for values in ([0, 0, 1, 0], [1, 6, 6, 3]))
    part = moved("SLICE", turned, begin, size, shape=(1, 6, 6, 3))
    borders = net.constant(np.array([[0, 0], [0, 1], [0, 1], [0, 0]], np.int32))
    image = moved("PAD", part, borders, shape=(1, 7, 7, 3))
    window = {"strideH": 2, "strideW": 2, "padding": net.schema.Padding.VALID}
    weight, bias = weights(net, 8, 3, 3, 3, axis=0)
    made = net.add("CONV_2D", image, weight, bias, shape=(1, 3, 3, 8), kind="Conv2DOptions", dtype=np.int8, **window)
    return net.write(path, net.quantise(made, 0.05, -100))


def test_what_moves_and_pads_bytes_equals_litert(tmp_path, here):
    kernels, result, expected = outcome(padded(tmp_path / "quantised.tflite"), here)
    assert kernels == ["integer_conv2d"]
    assert np.array_equal(result, expected)
