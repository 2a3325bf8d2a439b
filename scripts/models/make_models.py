"""Write well-known networks as ONNX files with seeded random weights.

    python scripts/models/make_models.py resnet18 mobilenet_v2 --output models --seed 0

A tuner cares about the shapes of a network and not about what it has learnt, so these files stand in for the
trained ones: nothing to download, and the same bytes from the same seed (and the same NumPy). The layers are
those of torchvision, down to the parameter count; BERT is Google's BERT-mini, at 128 tokens. Dropout is left
out, as it only matters in training; batch normalisation stays, because folding it is the tuner's work.

The weights are scaled so that activations neither explode nor vanish on unit-normal input. Without that, a
comparison between two compiled versions of a network would compare infinities or zeros, and prove nothing.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["NAMES", "build", "count_parameters", "main"]

OPSET = 17
IR_VERSION = 8  # the first one that allows opset 17: older runtimes can still read the files
IMAGE = (3, 224, 224)
CLASSES = 1000
# He's factor 2 makes up for what the next ReLU takes away. Where none comes next, at the end of a block, the
# batch normalisation takes the factor back, and more: a block adds its result to its input, so the sum grows.
LINEAR_SCALE = 0.5


@dataclass(frozen=True)
class Tensor:
    """A value in the graph. The shape of a computed one leaves out the batch: no layer depends on it."""

    name: str
    shape: tuple[int, ...]


class Net:
    """A graph under construction: each method adds one layer and returns what the layer computes."""

    def __init__(self, name: str, *, seed: int, batch: int | str) -> None:
        self._rng = np.random.default_rng(seed)
        self._batch = batch
        self._used: Counter[str] = Counter()
        # Filled in place: make_graph and make_model copy what they are given, and VGG-16 is half a gigabyte.
        graph = helper.make_graph([], name, [], [])
        opset = helper.make_opsetid("", OPSET)
        self._model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
        self._graph = self._model.graph

    def input(self, name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> Tensor:
        self._graph.input.append(helper.make_tensor_value_info(name, dtype, (self._batch, *shape)))
        return Tensor(name, shape)

    def finish(self, result: Tensor) -> onnx.ModelProto:
        """The model that ends in `result`, which must be what the newest node computes."""
        # Renamed in place: an Identity node would be one more operator for the tuner to deal with.
        self._graph.node[-1].output[0] = "output"
        shape = (self._batch, *result.shape)
        self._graph.output.append(helper.make_tensor_value_info("output", TensorProto.FLOAT, shape))
        return self._model

    def op(self, kind: str, *inputs: Tensor, shape: Sequence[int] | None = None, **attributes: Any) -> Tensor:
        """One node; its result has the shape of its first input unless `shape` says otherwise."""
        name = self._fresh(kind)
        node = helper.make_node(kind, [tensor.name for tensor in inputs], [name], name=name, **attributes)
        self._graph.node.append(node)
        return Tensor(name, inputs[0].shape if shape is None else tuple(shape))

    def constant(self, role: str, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> Tensor:
        array = np.asarray(value, dtype)
        name = self._fresh(role)
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return Tensor(name, array.shape)

    def _fresh(self, stem: str) -> str:
        self._used[stem] += 1
        return f"{stem}_{self._used[stem]}"

    # Biases and statistics are random too: a tuner that loses one of them must not get away with it.

    def _normal(self, role: str, *shape: int, deviation: float) -> Tensor:
        values = self._rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(deviation)
        return self.constant(role, values)

    def _near(self, role: str, centre: float, size: int) -> Tensor:
        return self.constant(role, self._rng.uniform(0.8 * centre, 1.2 * centre, size))

    def _bias(self, size: int) -> Tensor:
        return self._normal("bias", size, deviation=0.1)

    def _weight(self, *shape: int) -> Tensor:
        """He's initialisation of a weight whose first dimension counts the outputs."""
        return self._normal("weight", *shape, deviation=math.sqrt(2 / math.prod(shape[1:])))

    def conv(self, x: Tensor, channels: int, kernel: int, *, stride: int = 1, pad: int | None = None) -> Tensor:
        """Padded so that stride 1 keeps the size of the image, unless `pad` says otherwise."""
        weight = self._weight(channels, x.shape[0], kernel, kernel)
        bias = self._bias(channels)
        pad = kernel // 2 if pad is None else pad
        return self._slide("Conv", x, weight, bias, window=(kernel, stride, pad))

    def conv_bn(
        self, x: Tensor, channels: int, kernel: int, *, stride: int = 1, groups: int = 1, scale: float = 1.0
    ) -> Tensor:
        """A convolution without bias, since the batch normalisation after it brings one."""
        weight = self._weight(channels, x.shape[0] // groups, kernel, kernel)
        x = self._slide("Conv", x, weight, window=(kernel, stride, kernel // 2), group=groups)
        gamma = self._near("scale", scale, channels)
        beta = self._bias(channels)
        mean = self._normal("mean", channels, deviation=0.1)
        variance = self._near("variance", 1, channels)
        return self.op("BatchNormalization", x, gamma, beta, mean, variance)

    def dilated_conv(self, x: Tensor, channels: int, dilation: int) -> Tensor:
        """A 3x3 convolution whose window has holes. It keeps the size of the image."""
        shape = (channels, *x.shape[1:])
        attributes = {"kernel_shape": [3] * 2, "dilations": [dilation] * 2, "pads": [dilation] * 4}
        weight = self._weight(channels, x.shape[0], 3, 3)
        return self.op("Conv", x, weight, self._bias(channels), shape=shape, **attributes)

    def max_pool(self, x: Tensor, kernel: int, *, stride: int, pad: int = 0) -> Tensor:
        return self._slide("MaxPool", x, window=(kernel, stride, pad))

    def _slide(
        self, kind: str, x: Tensor, *constants: Tensor, window: tuple[int, int, int], **attributes: Any
    ) -> Tensor:
        """A window slides over an image. It is square, as everywhere in these networks."""
        kernel, stride, pad = window
        channels = constants[0].shape[0] if constants else x.shape[0]
        shape = (channels, *((side + 2 * pad - kernel) // stride + 1 for side in x.shape[1:]))
        attributes |= {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        return self.op(kind, x, *constants, shape=shape, **attributes)

    def global_pool(self, x: Tensor) -> Tensor:
        return self.flatten(self.op("GlobalAveragePool", x, shape=(x.shape[0], 1, 1)))

    def flatten(self, x: Tensor) -> Tensor:
        return self.op("Flatten", x, shape=[math.prod(x.shape)], axis=1)

    def relu(self, x: Tensor) -> Tensor:
        return self.op("Relu", x)

    def relu6(self, x: Tensor) -> Tensor:
        return self.op("Clip", x, self.constant("min", 0), self.constant("max", 6))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return self.op("Add", a, b)

    def concat(self, a: Tensor, b: Tensor) -> Tensor:
        return self.op("Concat", a, b, shape=(a.shape[0] + b.shape[0], *a.shape[1:]), axis=1)

    def gemm(self, x: Tensor, units: int) -> Tensor:
        """A fully connected layer of [batch, features], its weight transposed as PyTorch exports it."""
        (features,) = x.shape
        return self.op("Gemm", x, self._weight(units, features), self._bias(units), shape=[units], transB=1)

    def dense(self, x: Tensor, units: int) -> Tensor:
        """A fully connected layer over the last axis."""
        weight = self._normal("weight", x.shape[-1], units, deviation=math.sqrt(2 / x.shape[-1]))
        return self.add(self.matmul(x, weight), self._bias(units))

    def lstm(self, x: Tensor, units: int) -> Tensor:
        """An LSTM over [batch, steps, features], between transposes, as the operator wants the steps first."""
        steps, features = x.shape
        uniform = 1 / math.sqrt(units)  # PyTorch's initialisation, whose deviation is smaller by the root of 3
        weight = self._normal("weight", 1, 4 * units, features, deviation=uniform)
        recurrent = self._normal("recurrent", 1, 4 * units, units, deviation=uniform)
        turned = self.op("Transpose", x, perm=[1, 0, 2])
        bias = self._normal("bias", 1, 8 * units, deviation=0.1)
        outputs = self.op("LSTM", turned, weight, recurrent, bias, hidden_size=units)
        one = self.op("Squeeze", outputs, self.constant("axes", [1], np.int64))
        return self.op("Transpose", one, shape=(steps, units), perm=[1, 0, 2])

    def embedding(self, ids: Tensor, words: int, width: int) -> Tensor:
        """One vector for each token, plus one for its position."""
        vocabulary = self._normal("vocabulary", words, width, deviation=1)
        tokens = self.op("Gather", vocabulary, ids, shape=(*ids.shape, width), axis=0)
        return self.add(tokens, self._normal("positions", *tokens.shape, deviation=1))

    def layer_norm(self, x: Tensor) -> Tensor:
        scale = self._near("scale", 1, x.shape[-1])
        bias = self._bias(x.shape[-1])
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def gelu(self, x: Tensor) -> Tensor:
        """The exact form, with erf, in the operators that exporters write for it."""
        erf = self.op("Erf", self.op("Div", x, self.constant("divisor", math.sqrt(2))))
        return self.scale(self.op("Mul", x, self.add(erf, self.constant("one", 1))), 0.5)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return self.op("Mul", x, self.constant("factor", factor))

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return self.op("MatMul", a, b, shape=(*a.shape[:-1], b.shape[-1]))

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        target = self.constant("shape", (0, *shape), np.int64)  # 0 keeps the batch, whatever it is
        return self.op("Reshape", x, target, shape=shape)

    def transpose(self, x: Tensor, *order: int) -> Tensor:
        """Reorder the axes, which are counted without the batch as everywhere here."""
        shape = [x.shape[axis] for axis in order]
        return self.op("Transpose", x, shape=shape, perm=[0, *(axis + 1 for axis in order)])


def resnet18(net: Net) -> Tensor:
    """ResNet-18 (He et al., 2015), with batch normalisation"""
    x = net.relu(net.conv_bn(net.input("input", *IMAGE), 64, 7, stride=2))
    x = net.max_pool(x, 3, stride=2, pad=1)
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        x = _residual_block(net, x, channels, stride)
        x = _residual_block(net, x, channels, 1)
    return net.gemm(net.global_pool(x), CLASSES)


def _residual_block(net: Net, x: Tensor, channels: int, stride: int) -> Tensor:
    branch = net.relu(net.conv_bn(x, channels, 3, stride=stride))
    branch = net.conv_bn(branch, channels, 3, scale=LINEAR_SCALE)
    if stride != 1:
        x = net.conv_bn(x, channels, 1, stride=stride, scale=LINEAR_SCALE)
    return net.relu(net.add(branch, x))


def alexnet(net: Net) -> Tensor:
    """AlexNet in one column (Krizhevsky, 2014)"""
    x = net.relu(net.conv(net.input("input", *IMAGE), 64, 11, stride=4, pad=2))
    x = net.relu(net.conv(net.max_pool(x, 3, stride=2), 192, 5))
    x = net.max_pool(x, 3, stride=2)
    for channels in (384, 256, 256):
        x = net.relu(net.conv(x, channels, 3))
    return _classifier(net, net.max_pool(x, 3, stride=2))


def vgg16(net: Net) -> Tensor:
    """VGG-16, configuration D (Simonyan and Zisserman, 2014)"""
    x = net.input("input", *IMAGE)
    for channels, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            x = net.relu(net.conv(x, channels, 3))
        x = net.max_pool(x, 2, stride=2)
    return _classifier(net, x)


def _classifier(net: Net, x: Tensor) -> Tensor:
    x = net.flatten(x)
    for _ in range(2):
        x = net.relu(net.gemm(x, 4096))
    return net.gemm(x, CLASSES)


def mobilenet_v2(net: Net) -> Tensor:
    """MobileNetV2, width 1.0 (Sandler et al., 2018), with batch normalisation"""
    x = net.relu6(net.conv_bn(net.input("input", *IMAGE), 32, 3, stride=2))
    for expansion, channels, repeats, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for repeat in range(repeats):
            x = _inverted_residual(net, x, expansion, channels, 1 if repeat else stride)
    x = net.relu6(net.conv_bn(x, 1280, 1))
    return net.gemm(net.global_pool(x), CLASSES)


def _inverted_residual(net: Net, x: Tensor, expansion: int, channels: int, stride: int) -> Tensor:
    wide = x.shape[0] * expansion
    branch = net.relu6(net.conv_bn(x, wide, 1)) if expansion != 1 else x
    branch = net.relu6(net.conv_bn(branch, wide, 3, stride=stride, groups=wide))
    branch = net.conv_bn(branch, channels, 1, scale=LINEAR_SCALE)
    return net.add(x, branch) if branch.shape == x.shape else branch


def squeezenet(net: Net) -> Tensor:
    """SqueezeNet 1.1 (Iandola et al., 2016)"""
    x = net.relu(net.conv(net.input("input", *IMAGE), 64, 3, stride=2, pad=0))
    for fires in (((16, 64),) * 2, ((32, 128),) * 2, ((48, 192), (48, 192), (64, 256), (64, 256))):
        x = net.max_pool(x, 3, stride=2)
        for squeezed, expanded in fires:
            x = net.relu(net.conv(x, squeezed, 1))
            x = net.concat(net.relu(net.conv(x, expanded, 1)), net.relu(net.conv(x, expanded, 3)))
    x = net.relu(net.conv(x, CLASSES, 1))
    return net.global_pool(x)


def bert(net: Net) -> Tensor:
    """a BERT encoder (Devlin et al., 2018): 4 layers, 256 wide, 4 heads, 128 tokens"""
    ids = net.input("input_ids", 128, dtype=TensorProto.INT64)
    x = net.layer_norm(net.embedding(ids, 30522, 256))
    for _ in range(4):
        x = net.layer_norm(net.add(_attention(net, x, heads=4), x))
        wide = net.gelu(net.dense(x, 4 * x.shape[-1]))
        x = net.layer_norm(net.add(net.dense(wide, x.shape[-1]), x))
    return x


def _attention(net: Net, x: Tensor, *, heads: int) -> Tensor:
    tokens, width = x.shape
    query, key, value = (net.reshape(net.dense(x, width), tokens, heads, width // heads) for _ in range(3))
    scores = net.matmul(net.transpose(query, 1, 0, 2), net.transpose(key, 1, 2, 0))
    weights = net.op("Softmax", net.scale(scores, 1 / math.sqrt(width // heads)), axis=-1)
    mixed = net.transpose(net.matmul(weights, net.transpose(value, 1, 0, 2)), 1, 0, 2)
    return net.dense(net.reshape(mixed, tokens, width), width)


def tiny_cnn(net: Net) -> Tensor:
    """two convolutions with batch normalisation, in a few kilobytes: compiles and tunes in seconds"""
    x = net.relu(net.conv_bn(net.input("input", 3, 16, 16), 8, 3))
    x = net.relu(net.conv_bn(net.max_pool(x, 2, stride=2), 16, 3, stride=2))
    return net.gemm(net.global_pool(x), 10)


def demo_cnn(net: Net) -> Tensor:
    """three convolutions over 64x64 pixels, in 0.2 MB: the model of `autotune demo`"""
    x = net.relu(net.conv_bn(net.input("input", 3, 64, 64), 32, 3))
    x = net.relu(net.conv_bn(x, 64, 3, stride=2))
    x = net.relu(net.conv_bn(x, 64, 3))
    return net.gemm(net.global_pool(x), 10)


def mlp(net: Net) -> Tensor:
    """three fully connected layers over 784 features"""
    x = net.input("input", 784)
    for units in (256, 128):
        x = net.relu(net.gemm(x, units))
    return net.gemm(x, 10)


def tabular(net: Net) -> Tensor:
    """three fully connected layers over 30 features, as for a table"""
    x = net.input("input", 30)
    for units in (64, 32):
        x = net.relu(net.gemm(x, units))
    return net.gemm(x, 2)


def lstm(net: Net) -> Tensor:
    """two LSTM layers of 256 units over 100 steps"""
    return net.lstm(net.lstm(net.input("input", 100, 256), 256), 256)


def encoder_block(net: Net) -> Tensor:
    """one block of a transformer: 64 tokens, 32 wide, 4 heads"""
    x = net.input("input", 64, 32)
    x = net.layer_norm(net.add(_attention(net, x, heads=4), x))
    return net.layer_norm(net.add(net.dense(net.gelu(net.dense(x, 128)), 32), x))


def dilated_block(net: Net) -> Tensor:
    """a block that refines an image of 64 channels: six 3x3 convolutions with growing holes, and a residual"""
    x = first = net.relu(net.conv(net.input("input", 3, 48, 48), 64, 3))
    for dilation in (1, 2, 4, 8, 1):
        x = net.relu(net.dilated_conv(x, 64, dilation))
    return net.conv(net.add(x, first), 2, 3)


def inception_block(net: Net) -> Tensor:
    """inception (3a) of GoogLeNet (Szegedy et al., 2014): four branches of an image of 192 channels"""
    x = net.input("input", 192, 28, 28)
    one = net.relu(net.conv(x, 64, 1))
    three = net.relu(net.conv(net.relu(net.conv(x, 96, 1)), 128, 3))
    five = net.relu(net.conv(net.relu(net.conv(x, 16, 1)), 32, 5))
    pooled = net.relu(net.conv(net.max_pool(x, 3, stride=1, pad=1), 32, 1))
    return net.concat(net.concat(one, three), net.concat(five, pooled))


_NETWORKS: dict[str, Callable[[Net], Tensor]] = {
    network.__name__: network
    for network in (
        resnet18,
        alexnet,
        vgg16,
        mobilenet_v2,
        squeezenet,
        bert,
        tiny_cnn,
        demo_cnn,
        mlp,
        tabular,
        lstm,
        encoder_block,
        dilated_block,
        inception_block,
    )
}
NAMES = tuple(_NETWORKS)


def build(name: str, *, seed: int = 0, batch: int = 1, dynamic_batch: bool = False) -> onnx.ModelProto:
    """The network of that name. `dynamic_batch` puts the symbol `batch` in place of a fixed batch size."""
    if name not in _NETWORKS:
        raise ValueError(f"no network is called {name!r}; there are {', '.join(NAMES)}")
    if batch < 1:
        raise ValueError(f"the batch must be at least 1, not {batch}")
    net = Net(name, seed=seed, batch="batch" if dynamic_batch else batch)
    return net.finish(_NETWORKS[name](net))


def count_parameters(model: onnx.ModelProto) -> int:
    """What papers count: the learnt numbers, without the running statistics of batch normalisation."""
    graph = model.graph
    statistics = {n for node in graph.node if node.op_type == "BatchNormalization" for n in node.input[3:5]}
    return sum(
        math.prod(tensor.dims)
        for tensor in graph.initializer
        # No dimensions: the constant of a formula. Not floating point: the target of a Reshape.
        if tensor.dims and tensor.data_type == TensorProto.FLOAT and tensor.name not in statistics
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse would print the usage as well."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="make_models", description="Write well-known networks as ONNX files.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="the networks to write (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--output", type=Path, default=Path("models"), metavar="DIR", help="default: models")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the weights (default: 0)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--batch", type=int, default=1, metavar="N", help="batch size (default: 1)")
    size.add_argument("--dynamic-batch", action="store_true", help="leave the batch size open, as `batch`")
    options = parser.parse_intermixed_args(arguments)
    unknown = [name for name in options.names if name not in _NETWORKS]
    if unknown:
        parser.error(f"no network is called {', '.join(map(repr, unknown))}; there are {', '.join(NAMES)}")
    if options.batch < 1 or options.seed < 0:
        parser.error("a batch is at least 1, and a seed at least 0")
    return options


def _write(model: onnx.ModelProto, path: Path) -> int:
    """Publish the file whole: half a network under its final name would be believed. Returns its size."""
    content: bytes = model.SerializeToString(deterministic=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return len(content)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.list:
        print("\n".join(f"{name:<13} {inspect.getdoc(network)}" for name, network in _NETWORKS.items()))
        return 0
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        for name in dict.fromkeys(options.names or NAMES):
            model = build(name, seed=options.seed, batch=options.batch, dynamic_batch=options.dynamic_batch)
            path = options.output / f"{name}.onnx"
            size = _write(model, path)
            print(f"{path}  {size / 1e6:.3f} MB  {count_parameters(model):,} parameters", flush=True)
    except OSError as error:
        print(f"make_models: error: cannot write to {options.output}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
