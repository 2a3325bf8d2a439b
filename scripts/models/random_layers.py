#!/usr/bin/env python
"""Write random single layers as ONNX models: what the prior is trained on.

    python scripts/models/random_layers.py 76 --output layers --seed 0

Convolutions of all kinds, dense layers, batched products, pools, softmax: shapes are drawn from lists of common
numbers, so that no network is copied and the prior is judged on networks that it never saw.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

SIDES = (6, 8, 10, 12, 16, 20, 24, 30, 32, 40, 48, 60, 64, 80, 96)
CHANNELS = (16, 24, 32, 40, 48, 64, 80, 96, 128, 144, 160, 192, 224, 256, 288, 320, 384, 448, 512, 640, 768)
WIDTHS = (48, 96, 160, 320, 500, 640, 800, 1280, 2048)
# Multiply-adds of a layer, twice: smaller ones tell nothing, larger ones take long.
WORK = (2e6, 6e8)
DEPTHWISE_WORK = (2e5, 4e7)
TAILS = ("relu", "relu", "add", "clip", "silu", "none")
ROWS = (1, 1, 16, 48, 96, 128, 196)


@dataclass
class Layer:
    """A model of one layer under construction; its input is `x` and its output `y`."""

    draw: random.Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[tuple[str, Sequence[int]]] = field(default_factory=list)

    def weight(self, name: str, *shape: int) -> str:
        values = np.random.default_rng(self.draw.getrandbits(32)).standard_normal(shape) * 0.05
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def save(self, path: Path) -> None:
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self.inputs]
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, path.stem, inputs, [output], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.save(shape_inference.infer_shapes(model), path)


def convolution(draw: random.Random, kernel: int, stride: int, groups: int = 1) -> Layer:
    """`groups` 0 stands for a depthwise one."""
    layer = Layer(draw)
    (low, high) = WORK if groups else DEPTHWISE_WORK
    while True:
        side = draw.choice(SIDES)
        channels = draw.choice(CHANNELS)
        filters = draw.choice(CHANNELS)
        filters = filters if groups == 1 else channels
        shared = channels // (groups or channels)
        if not channels % (groups or 1) and low <= 2 * shared * filters * (kernel * side // stride) ** 2 <= high:
            break
    if groups:
        layer.inputs.append(("x", (1, channels, side, side)))
    else:
        _expand(layer, channels, side)
    return _convolve(layer, (filters, shared, kernel, kernel), stride, groups or channels, side)


def _expand(layer: Layer, channels: int, side: int) -> None:
    """Put a dense convolution before a depthwise one: as in networks, its input is then packed."""
    few = max(16, channels // 6 // 8 * 8)
    layer.inputs.append(("image", (1, few, side, side)))
    operands = ["image", layer.weight("w1", channels, few, 1, 1), layer.weight("b1", channels)]
    layer.node("Relu", [layer.node("Conv", operands, "e", kernel_shape=[1, 1])], "x")


def stem(draw: random.Random) -> Layer:
    """The first convolution of a network for images, of which the smaller ones are often not reduced in size."""
    kernel = draw.choice((3, 3, 5, 7))
    stride = draw.choice((1, 2))
    side = draw.choice((28, 32, 48, 64, 96) if stride == 1 else (64, 96, 120, 160, 200, 224))
    channels = draw.choice((1, 3, 3, 3, 4))
    layer = Layer(draw, inputs=[("x", (1, channels, side, side))])
    return _convolve(layer, (draw.choice((16, 24, 32, 48, 64)), channels, kernel, kernel), stride, 1, side)


def _convolve(layer: Layer, shape: tuple[int, int, int, int], stride: int, groups: int, side: int) -> Layer:
    kernel = shape[2]
    pad = shape[2] // 2
    operands = ["x", layer.weight("w", *shape), layer.weight("b", shape[0])]
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "group": groups}
    tail = layer.draw.choice(TAILS)
    layer.node("Conv", operands, "y" if tail == "none" else "c", **attributes)
    if tail == "relu":
        layer.node("Relu", ["c"], "y")
    elif tail == "clip":
        layer.weights += [numpy_helper.from_array(np.float32(value), name) for name, value in (("lo", 0), ("hi", 6))]
        layer.node("Clip", ["c", "lo", "hi"], "y")
    elif tail == "silu":
        layer.node("Mul", ["c", layer.node("Sigmoid", ["c"], "s")], "y")
    elif tail == "add":
        after = (side + 2 * pad - kernel) // stride + 1
        layer.inputs.append(("r", (1, shape[0], after, after)))
        layer.node("Relu", [layer.node("Add", ["c", "r"], "d")], "y")
    return layer


def dense(draw: random.Random) -> Layer:
    rows = draw.choice(ROWS)
    inner = draw.choice(WIDTHS)
    columns = draw.choice(WIDTHS)
    layer = Layer(draw)
    tail = draw.choice(("none", "relu", "gelu"))
    layer.inputs.append(("x", (rows, inner)))
    product = layer.node("MatMul", ["x", layer.weight("w", inner, columns)], "c")
    layer.node("Add", [product, layer.weight("b", columns)], "y" if tail == "none" else "d")
    if tail != "none":
        layer.node(tail.capitalize(), ["d"], "y")
    return layer


def product(draw: random.Random) -> Layer:
    """A batched matrix product of two inputs, as in attention."""
    heads = draw.choice((4, 6, 8))
    rows = draw.choice((48, 96, 160))
    inner = draw.choice((32, 48, 96))
    layer = Layer(draw, inputs=[("x", (1, heads, rows, inner)), ("z", (1, heads, inner, rows))])
    layer.node("MatMul", ["x", "z"], "y")
    return layer


def pool(draw: random.Random) -> Layer:
    layer = Layer(draw, inputs=[("x", (1, draw.choice(CHANNELS), side := draw.choice(SIDES[4:]), side))])
    operator = draw.choice(("MaxPool", "AveragePool"))
    layer.node(operator, ["x"], "y", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    return layer


def reduction(draw: random.Random) -> Layer:
    layer = Layer(draw, inputs=[("x", (1, draw.choice(CHANNELS), 10, 10))])
    if draw.random() < 0.5:
        layer.node("GlobalAveragePool", ["x"], "y")
    else:
        layer.node("Softmax", ["x"], "y", axis=-1)
    return layer


def rows(draw: random.Random) -> Layer:
    """What transformers do to each row: a softmax of attention, or a layer normalisation."""
    layer = Layer(draw)
    count = draw.choice(ROWS[2:])
    if draw.random() < 0.5:
        layer.inputs.append(("x", (1, draw.choice((4, 6, 8, 12)), count, count)))
        layer.node("Softmax", ["x"], "y", axis=-1)
    else:
        width = draw.choice(WIDTHS[2:])
        layer.inputs.append(("x", (1, count, width)))
        layer.node("LayerNormalization", ["x", layer.weight("w", width), layer.weight("b", width)], "y", axis=-1)
    return layer


Make = Callable[[random.Random], Layer]
# How often each kind of layer is drawn.
KINDS: dict[str, tuple[int, Make]] = {
    "conv1": (22, lambda draw: convolution(draw, 1, 1)),
    "conv1-s2": (2, lambda draw: convolution(draw, 1, 2)),
    "conv3": (18, lambda draw: convolution(draw, 3, 1)),
    "conv3-s2": (6, lambda draw: convolution(draw, 3, 2)),
    "conv5": (2, lambda draw: convolution(draw, 5, 1)),
    "depthwise": (9, lambda draw: convolution(draw, draw.choice((3, 3, 5)), 1, groups=0)),
    "depthwise-s2": (5, lambda draw: convolution(draw, 3, 2, groups=0)),
    "grouped": (2, lambda draw: convolution(draw, 3, 1, groups=4)),
    "stem": (3, stem),
    "dense": (12, dense),
    "product": (3, product),
    "pool": (2, pool),
    "reduction": (2, reduction),
    "rows": (4, rows),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--output", type=Path, default=Path("layers"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS), help="of layers (default: all)"
    )
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    draw = random.Random(options.seed)
    names = draw.choices(options.kinds, [KINDS[kind][0] for kind in options.kinds], k=options.count)
    for number, name in enumerate(names):
        KINDS[name][1](draw).save(options.output / f"{number:03}-{name}.onnx")


if __name__ == "__main__":
    main()
