"""Small sound models of TensorFlow Lite. For `mutate_formats.py`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.lite_network import Network


def _content(network: Network, *outputs: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return network.write(Path(folder) / "model", *outputs).read_bytes()


def convolution() -> bytes:
    """A convolution with its bias, and a pooling."""
    network = Network()
    x = network.input("x", 1, 8, 8, 3)
    weights = network.constant(np.linspace(-1, 1, 4 * 3 * 3 * 3, dtype=np.float32).reshape(4, 3, 3, 3))
    bias = network.constant(np.zeros(4, np.float32))
    strides = {"strideH": 1, "strideW": 1}
    y = network.add("CONV_2D", x, weights, bias, shape=(1, 8, 8, 4), kind="Conv2DOptions", **strides)
    sizes = {"filterHeight": 2, "filterWidth": 2, "strideH": 2, "strideW": 2}
    return _content(network, network.add("MAX_POOL_2D", y, shape=(1, 4, 4, 4), kind="Pool2DOptions", **sizes))


def quantised_product() -> bytes:
    """A product of bytes, and a softmax in floats."""
    network = Network()
    x = network.quantise(network.input("x", 2, 8, dtype=np.int8))
    weights = network.quantise(network.constant(np.arange(32, dtype=np.int8).reshape(4, 8)))
    bias = network.quantise(network.constant(np.zeros(4, np.int32)), 0.25)
    y = network.quantise(network.add("FULLY_CONNECTED", x, weights, bias, shape=(2, 4), dtype=np.int8,
                                     kind="FullyConnectedOptions"), 8.0)  # fmt: skip
    floats = network.add("DEQUANTIZE", y, shape=(2, 4), kind="DequantizeOptions")
    return _content(network, network.add("SOFTMAX", floats, shape=(2, 4), kind="SoftmaxOptions", beta=1.0))


def moves() -> bytes:
    """A reshape by a constant, a transposition, and a sum along an axis."""
    network = Network()
    x = network.input("x", 2, 3, 4)
    shape = network.constant(np.array([6, 4], np.int32))
    flat = network.add("RESHAPE", x, shape, shape=(6, 4), kind="ReshapeOptions", newShape=[6, 4])
    turned = network.add("TRANSPOSE", flat, network.constant(np.array([1, 0], np.int32)), shape=(4, 6),
                         kind="TransposeOptions")  # fmt: skip
    axis = network.constant(np.array([1], np.int32))
    return _content(network, network.add("SUM", turned, axis, shape=(4,), kind="ReducerOptions", keepDims=False))
