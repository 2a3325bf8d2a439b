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


def _handle(network: Network) -> int:
    """Add what stands for a value that is kept."""
    number = network.add("VAR_HANDLE", shape=(), kind="VarHandleOptions", sharedName="sum")
    network.graph.tensors[number].type = network.schema.TensorType.RESOURCE
    return number


def _assign(network: Network, kept: int, value: int) -> None:
    network.add("ASSIGN_VARIABLE", kept, value, shape=())
    network.graph.operators[-1].outputs = []


def _begin_with(network: Network, value: np.ndarray) -> None:
    """Add a graph that assigns to the value before the first run."""
    main = network.graph
    network.graph = network.schema.SubGraphT()
    for part in ("tensors", "operators", "inputs", "outputs"):
        setattr(network.graph, part, [])
    _assign(network, _handle(network), network.constant(value))
    network.model.subgraphs.append(network.graph)
    network.graph = main
    network.add("CALL_ONCE", shape=(), kind="CallOnceOptions", initSubgraphIndex=1)
    network.graph.operators[-1].outputs = []


def kept_value() -> bytes:
    """A sum that is kept from one run to the next."""
    network = Network()
    x = network.input("x", 1, 4)
    _begin_with(network, np.zeros((1, 4), np.float32))
    handle = _handle(network)
    before = network.add("READ_VARIABLE", handle, shape=(1, 4))
    after = network.add("ADD", before, x, shape=(1, 4), kind="AddOptions")
    _assign(network, handle, after)
    return _content(network, after)


def computed_shape() -> bytes:
    """A reshape by a shape that is computed from that of the input."""
    network = Network()
    x = network.input("x", 2, 3, 4)
    number = network.schema.TensorType.INT32
    shape = network.add("SHAPE", x, shape=(3,), kind="ShapeOptions", dtype=np.int32, outType=number)
    places = (network.constant(np.array([value], np.int32)) for value in (0, 1, 1))
    slicing = {"kind": "StridedSliceOptions", "dtype": np.int32, "shrinkAxisMask": 1}
    rows = network.add("STRIDED_SLICE", shape, *places, shape=(), **slicing)
    rest = network.constant(np.array(12, np.int32))
    wanted = network.add("PACK", rows, rest, shape=(2,), dtype=np.int32, kind="PackOptions", valuesCount=2)
    return _content(network, network.add("RESHAPE", x, wanted, shape=(2, 12), kind="ReshapeOptions"))
