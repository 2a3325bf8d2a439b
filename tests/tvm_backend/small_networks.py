"""Small networks of all kinds in ONNX, in floats and as quantisers write them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_models
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Net = make_models.Net
Tensor = make_models.Tensor


_SCALED = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (1,),
}  # inputs that are weights, by operator


_IN_FLOATS = {"Softmax", "LayerNormalization", "Erf", "Div", "Shape", "Constant", "Gather", "GRU", "LSTM", "Clip"}


def resnet(net: Net) -> Tensor:
    """The beginning of ResNet-18."""
    x = net.relu(net.conv_bn(net.input("input", 3, 64, 64), 64, 7, stride=2))
    x = net.max_pool(x, 3, stride=2, pad=1)
    for channels, stride in ((64, 1), (128, 2)):
        x = make_models._residual_block(net, x, channels, stride)
    return net.gemm(net.global_pool(x), 10)


def mobilenet(net: Net) -> Tensor:
    """The beginning of MobileNetV2."""
    x = net.relu6(net.conv_bn(net.input("input", 3, 48, 48), 32, 3, stride=2))
    for expansion, channels, stride in ((1, 16, 1), (6, 24, 2), (6, 24, 1)):
        x = make_models._inverted_residual(net, x, expansion, channels, stride)
    return net.gemm(net.global_pool(net.relu6(net.conv_bn(x, 96, 1))), 10)


def squeezenet(net: Net) -> Tensor:
    """A block of SqueezeNet: two branches that are put together."""
    x = net.relu(net.conv(net.input("input", 3, 33, 33), 64, 3, stride=2, pad=0))
    x = net.relu(net.conv(net.max_pool(x, 3, stride=2), 16, 1))
    x = net.concat(net.relu(net.conv(x, 64, 1)), net.relu(net.conv(x, 64, 3)))
    return net.global_pool(net.relu(net.conv(x, 10, 1)))


def inception(net: Net) -> Tensor:
    """Four branches, of 1x1, 3x3 and 5x5, and one pooled."""
    return make_models.inception_block(net)


def dilated(net: Net) -> Tensor:
    """Convolutions with holes."""
    return make_models.dilated_block(net)


def encoder(net: Net) -> Tensor:
    """One block of BERT, with its embedding."""
    ids = net.input("input_ids", 32, dtype=TensorProto.INT64)
    x = net.layer_norm(net.embedding(ids, 100, 64))
    x = net.layer_norm(net.add(make_models._attention(net, x, heads=4), x))
    return net.layer_norm(net.add(net.dense(net.gelu(net.dense(x, 256)), 64), x))


def lstm(net: Net) -> Tensor:
    """Two LSTM layers."""
    return net.lstm(net.lstm(net.input("input", 12, 64), 64), 64)


def gru(net: Net) -> Tensor:
    """A GRU layer in both directions, and a classifier of each step."""
    x = net.transpose(net.reshape(net.input("input", 12, 48), 12, 48), 0, 1)
    turned = net.op("Transpose", x, shape=(1, 48), perm=[1, 0, 2])
    weights = [net._normal("weight", 2, 96, inner, deviation=0.1) for inner in (48, 32)]
    result = net.op(
        "GRU", turned, *weights, net._normal("bias", 2, 192, deviation=0.1), hidden_size=32, direction="bidirectional"
    )
    steps = net.op("Transpose", result, perm=[2, 0, 1, 3])
    return net.dense(net.op("Reshape", steps, net.constant("shape", (0, 12, 64), np.int64), shape=(12, 64)), 10)


def detector(net: Net) -> Tensor:
    """Blocks of YOLOv8: SiLU, halves of channels, pooling at three scales, and a larger image beside the one before."""
    fine = _silu(net, net.conv_bn(net.input("input", 3, 64, 64), 32, 3, stride=2))
    coarse = _silu(net, net.conv_bn(fine, 64, 3, stride=2))
    kept, worked = (_channels(net, coarse, start, start + 32) for start in (0, 32))
    worked = net.add(_silu(net, net.conv_bn(_silu(net, net.conv_bn(worked, 32, 3)), 32, 3)), worked)
    coarse = _silu(net, net.conv_bn(net.concat(kept, worked), 64, 1))
    once = net.max_pool(coarse, 5, stride=1, pad=2)
    coarse = _silu(
        net, net.conv_bn(net.concat(net.concat(coarse, once), net.max_pool(once, 5, stride=1, pad=2)), 64, 1)
    )
    merged = net.concat(_resized(net, coarse, "nearest"), fine)
    return net.reshape(net.op("Sigmoid", net.conv(_silu(net, net.conv_bn(merged, 32, 3)), 18, 1)), 18, 32 * 32)


def upscaling(net: Net) -> Tensor:
    """A network from image to image: transposed convolution, bilinear resize, padding, pixels from channels."""
    x = net.op("LeakyRelu", net.conv_bn(net.input("input", 3, 24, 24), 32, 3, stride=2), alpha=0.1)
    weight = net._normal("weight", 32, 16, 4, 4, deviation=0.1)
    wide = net.op(
        "ConvTranspose",
        x,
        weight,
        net._bias(16),
        shape=(16, 24, 24),
        kernel_shape=[4] * 2,
        strides=[2] * 2,
        pads=[1] * 4,
    )
    x = net.relu(net.add(net.relu(wide), net.conv(_resized(net, x, "linear"), 16, 1)))
    pads = net.constant("pads", (0, 0, 1, 1, 0, 0, 1, 1), np.int64)
    x = net.conv(net.op("Pad", x, pads, shape=(16, 26, 26), mode="reflect"), 12, 3, pad=0)
    return net.op("DepthToSpace", x, shape=(3, 48, 48), blocksize=2)


def convnext(net: Net) -> Tensor:
    """A block of ConvNeXt: a convolution by channels, then products of the pixels' channels."""
    first = net.conv(net.input("input", 3, 32, 32), 48, 4, stride=4, pad=0)
    weight = net._weight(48, 1, 7, 7)
    x = net._slide("Conv", first, weight, net._bias(48), window=(7, 1, 3), group=48)
    x = net.layer_norm(net.transpose(x, 1, 2, 0))
    x = net.transpose(net.dense(net.gelu(net.dense(x, 192)), 48), 2, 0, 1)
    return net.gemm(net.global_pool(net.add(x, first)), 10)


def mlp(net: Net) -> Tensor:
    """Fully connected layers."""
    return make_models.tabular(net)


def signal(net: Net) -> Tensor:
    """Convolutions over a signal, with a sum over groups."""
    x = net.input("input", 8, 200)
    for channels, stride in ((32, 2), (64, 2)):
        weight = net._weight(channels, x.shape[0], 5)
        shape = (channels, (x.shape[1] + 4 - 5) // stride + 1)
        window = {"kernel_shape": [5], "strides": [stride], "pads": [2, 2]}
        x = net.relu(net.op("Conv", x, weight, net._bias(channels), shape=shape, **window))
    return net.gemm(net.flatten(net.op("GlobalAveragePool", x, shape=(64, 1))), 10)


def shufflenet(net: Net) -> Tensor:
    """A block of ShuffleNet: groups of channels that are shuffled, and an average beside it."""
    x = net.relu(net.conv(net.input("input", 3, 32, 32), 48, 3, stride=2))
    branch = net.relu(net.conv_bn(x, 48, 1, groups=3))
    shuffled = net.transpose(net.reshape(branch, 3, 16, 16, 16), 1, 0, 2, 3)
    branch = net.conv_bn(net.reshape(shuffled, 48, 16, 16), 48, 3, stride=2, groups=48)
    pooled = net._slide("AveragePool", x, window=(3, 2, 1))
    return net.gemm(net.global_pool(net.relu(net.concat(net.conv_bn(branch, 48, 1, groups=3), pooled))), 10)


def _silu(net: Net, x: Tensor) -> Tensor:
    return net.op("Mul", x, net.op("Sigmoid", x))


def _channels(net: Net, x: Tensor, start: int, end: int) -> Tensor:
    bounds = [net.constant(role, [value], np.int64) for role, value in (("starts", start), ("ends", end), ("axes", 1))]
    return net.op("Slice", x, *bounds, shape=(end - start, *x.shape[1:]))


def _resized(net: Net, x: Tensor, mode: str) -> Tensor:
    """An image of twice the size."""
    unused = Tensor("", ())
    shape = (x.shape[0], *(2 * side for side in x.shape[1:]))
    rounding = {"nearest_mode": "floor"} if mode == "nearest" else {}
    scales = net.constant("scales", (1, 1, 2, 2))
    return net.op(
        "Resize", x, unused, scales, shape=shape, mode=mode, coordinate_transformation_mode="asymmetric", **rounding
    )


NETWORKS: dict[str, Callable[[Net], Tensor]] = {
    network.__name__: network
    for network in (
        resnet,
        mobilenet,
        squeezenet,
        inception,
        dilated,
        encoder,
        lstm,
        gru,
        detector,
        upscaling,
        convnext,
        mlp,
        signal,
        shufflenet,
    )
}


def build(name: str) -> onnx.ModelProto:
    """A network in floats."""
    net = Net(name, seed=0, batch=1)
    return net.finish(NETWORKS[name](net))


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """A network with bytes between its operators, at scales that depend on no calibration."""
    weights = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    nodes: list[Any] = []
    constants = list(model.graph.initializer)
    dequantised: dict[str, str] = {}
    numbers = iter(range(10**6))

    def constant(value: Any) -> str:
        name = f"quantised_{next(numbers)}"
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def of_weight(name: str, outer: int) -> str:
        value = weights[name]
        axes = tuple(axis for axis in range(value.ndim) if axis != outer)
        scale = np.maximum(np.abs(value).max(axis=axes), 1e-3).astype(np.float32) / np.float32(127)
        shape = [-1 if axis == outer else 1 for axis in range(value.ndim)]
        integers = np.round(value / scale.reshape(shape)).astype(np.int8)
        points = constant(np.zeros(len(scale), np.int8))
        return _append("DequantizeLinear", constant(integers), constant(scale), points, axis=outer)

    def of_values(name: str) -> str:
        quantity = (
            constant(np.float32(0.02 + 0.001 * (len(dequantised) % 7))),
            constant(np.uint8(128 - len(dequantised) % 3)),
        )
        return _append("DequantizeLinear", _append("QuantizeLinear", name, *quantity), *quantity)

    def _append(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"quantised_{next(numbers)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    floats = {item.name for item in model.graph.input if item.type.tensor_type.elem_type == TensorProto.FLOAT}
    dequantised.update({name: of_values(name) for name in sorted(floats)})
    last = model.graph.output[0].name
    for node in model.graph.node:
        scaled = _SCALED.get(node.op_type, ())
        transposed = node.op_type == "Gemm" and any(item.name == "transB" and item.i for item in node.attribute)
        inputs = []
        for place, name in enumerate(node.input):
            if name in weights and place in scaled[:1] and weights[name].ndim > 1:
                first = node.op_type in ("Conv",) or transposed
                inputs.append(
                    of_weight(name, 0 if first else weights[name].ndim - 1 if node.op_type != "ConvTranspose" else 1)
                )
            else:
                inputs.append(dequantised.get(name, name))
        nodes.append(helper.make_node(node.op_type, inputs, list(node.output), node.name))
        nodes[-1].attribute.extend(node.attribute)
        if node.op_type not in _IN_FLOATS and node.output[0] != last:
            dequantised[node.output[0]] = of_values(node.output[0])
    graph = helper.make_graph(nodes, model.graph.name, list(model.graph.input), list(model.graph.output), constants)
    return helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)


def quantised_dynamically(model: onnx.ModelProto) -> onnx.ModelProto:
    """A network whose products are quantised as they run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        path, result = Path(folder, "floats.onnx"), Path(folder, "bytes.onnx")
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        quantize_dynamic(path, result, weight_type=QuantType.QInt8, per_channel=True)
        return onnx.load(result)
