"""Single operators of ONNX at sizes that networks have them at: a row for each, as `measure_defaults.py` times them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]

IMAGE = (1, 64, 56, 56)  # an early stage of a ResNet
TOKENS = (1, 128, 768)  # BERT
HEADS = (1, 12, 128, 128)  # its attention
SPEECH = (1, 80, 3000)  # thirty seconds of a mel spectrogram
LETTERS = (1, 40, 18385)  # scores of Chinese characters along a line of text
CLASSES = (1, 1000)
BOXES = (1, 84, 8400)  # a YOLO


@dataclass(frozen=True)
class Operator:
    """An operator at a size.

    Attributes:
        kind: Its name in ONNX.
        shapes: Those of its inputs.
        constants: Inputs after them that are constants.
        attributes: Its attributes.
        dtypes: Those of its inputs; float32 for those that are not listed.
        outputs: How many it has.
        bound: Integers are below it.
    """

    kind: str
    shapes: Sequence[Shape]
    constants: Sequence[Any] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Sequence[str] = ()
    outputs: int = 1
    bound: int = 64

    @property
    def name(self) -> str:
        """Its kind and the shapes of its inputs."""
        return f"{self.kind} {' '.join('x'.join(map(str, shape)) or 'scalar' for shape in self.shapes)}{self._how()}"

    def _how(self) -> str:
        told = [f"{key}={value}" for key, value in self.attributes.items()]
        return f" {' '.join(told)}" if told else ""

    def dtype(self, place: int) -> str:
        """The type of an input."""
        return self.dtypes[place] if place < len(self.dtypes) else "float32"

    def arrays(self) -> list[Any]:
        """Random inputs, the same every time."""
        rng = np.random.default_rng(0)
        return [self._drawn(rng, shape, self.dtype(place)) for place, shape in enumerate(self.shapes)]

    def _drawn(self, rng: np.random.Generator, shape: Shape, dtype: str) -> Any:
        if np.dtype(dtype).kind == "f":
            values = rng.standard_normal(shape)
            return np.asarray(np.abs(values) + 0.1 if self.kind in _POSITIVE else values, dtype)
        return np.asarray(rng.integers(0, 2 if dtype == "bool" else self.bound, shape), dtype)

    def model(self) -> onnx.ModelProto:
        """A network of this operator alone."""
        names = [f"x{place}" for place in range(len(self.shapes))]
        inputs = [
            helper.make_tensor_value_info(name, _type(self.dtype(place)), shape)
            for place, (name, shape) in enumerate(zip(names, self.shapes, strict=True))
        ]
        constants = [
            numpy_helper.from_array(np.asarray(item), f"c{place}") for place, item in enumerate(self.constants)
        ]
        outputs = [f"y{place}" for place in range(self.outputs)]
        operands = [*names, *(item.name if item.dims != [0] else "" for item in constants)]
        node = helper.make_node(self.kind, operands, outputs, **self.attributes)
        ends = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([node], "operator", inputs, ends, [item for item in constants if item.dims != [0]])
        opset = helper.make_opsetid("", _OPSETS.get(self.kind, _OPSET))
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[opset], ir_version=8))


def _type(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp"),
    *("Floor", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg"),
    *("Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan"),
    *("Tanh", "ThresholdedRelu"),
)
_BINARY = (
    *("Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul"),
    *("PRelu", "Pow", "Sub", "Sum"),
)
_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    "ReduceProd",
)
_OPSET = 17
_OPSETS = {"Mish": 18}  # where an operator is younger
_POSITIVE = ("Log", "Sqrt", "Pow", "Reciprocal", "Mod")
LEFT_OUT = np.zeros(0, np.float32)  # an optional input in the middle


def _weights(*shape: int) -> Any:
    return (np.random.default_rng(1).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def _axes(*axes: int) -> Any:
    return np.array(axes, np.int64)


def operators() -> Iterator[Operator]:
    """Yield every row."""
    yield from _pointwise()
    yield from _reductions()
    yield from _normalisations()
    yield from _windows()
    yield from _products()
    yield from _movements()
    yield from _choices()


def _pointwise() -> Iterator[Operator]:
    for kind in _UNARY:
        yield Operator(kind, [IMAGE])
    for kind in [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Max",
        "Min",
        "PRelu",
        "Pow",
        "Less",
        "Greater",
        "Equal",
        "LessOrEqual",
        "GreaterOrEqual",
        "Mean",
        "Sum",
    ]:
        yield Operator(kind, [IMAGE, IMAGE])
    yield Operator("Mod", [IMAGE, IMAGE], attributes={"fmod": 1})
    yield Operator("Add", [IMAGE, (1, 64, 1, 1)])
    yield Operator("Mul", [TOKENS, (768,)])
    yield Operator("Clip", [IMAGE], [np.float32(0), np.float32(6)])
    yield Operator("Cast", [IMAGE], attributes={"to": TensorProto.FLOAT16})
    yield Operator("Cast", [IMAGE], attributes={"to": TensorProto.INT32})
    yield Operator("Where", [IMAGE, IMAGE, IMAGE], dtypes=["bool"])
    for kind in ("And", "Or", "Xor"):
        yield Operator(kind, [IMAGE, IMAGE], dtypes=["bool", "bool"])
    yield Operator("Not", [IMAGE], dtypes=["bool"])
    yield Operator("QuantizeLinear", [IMAGE], [np.float32(0.02), np.uint8(128)])
    yield Operator("DequantizeLinear", [IMAGE], [np.float32(0.02), np.uint8(128)], dtypes=["uint8"])
    yield Operator("DynamicQuantizeLinear", [TOKENS], outputs=3)
    yield Operator("BitShift", [IMAGE, IMAGE], attributes={"direction": "LEFT"}, dtypes=["uint8", "uint8"], bound=4)
    yield Operator("CumSum", [TOKENS], [np.int64(1)])


def _reductions() -> Iterator[Operator]:
    for kind in [
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
    ]:
        yield Operator(kind, [TOKENS], attributes={"axes": [-1]})
    yield Operator("ReduceSum", [TOKENS], [_axes(-1)])
    yield Operator("ReduceSumSquare", [TOKENS], attributes={"axes": [-1]})
    for kind in ("ReduceMax", "ReduceMean", "ReduceMin"):
        yield Operator(kind, [IMAGE], attributes={"axes": [2, 3]})
        yield Operator(kind, [IMAGE], attributes={"axes": [1]})
    yield Operator("ReduceMean", [TOKENS], attributes={"axes": [1]})
    yield Operator("ReduceMax", [LETTERS], attributes={"axes": [-1]})
    yield Operator("ReduceMax", [BOXES], attributes={"axes": [1]})
    yield Operator("ReduceMean", [IMAGE], attributes={"axes": [0, 1, 2, 3]})
    yield Operator("ReduceMax", [TOKENS], attributes={"axes": [0, 1, 2]})
    for shape, axis in ((LETTERS, -1), (BOXES, 1), (CLASSES, -1)):
        yield Operator("ArgMax", [shape], attributes={"axis": axis})
    yield Operator("ArgMin", [TOKENS], attributes={"axis": -1})


def _normalisations() -> Iterator[Operator]:
    for shape, axis in (
        (LETTERS, -1),
        (HEADS, -1),
        (CLASSES, -1),
        (BOXES, 1),
        ((1, 16, 4, 8400), 1),
        ((1, 19, 256, 256), 1),
    ):
        yield Operator("Softmax", [shape], attributes={"axis": axis})
    yield Operator("Softmax", [(1, 8, 127, 127)], attributes={"axis": -1})
    yield Operator("LogSoftmax", [LETTERS], attributes={"axis": -1})
    yield Operator("LogSoftmax", [(1, 300, 97)], attributes={"axis": -1})
    yield Operator("Hardmax", [CLASSES], attributes={"axis": -1})
    yield Operator("LayerNormalization", [TOKENS], [_weights(768), _weights(768)])
    yield Operator("LayerNormalization", [(1, 128, 1021)], [_weights(1021), _weights(1021)])
    yield Operator("InstanceNormalization", [IMAGE], [_weights(64), _weights(64)])
    yield Operator("BatchNormalization", [IMAGE], [_weights(64), _weights(64), _weights(64), np.ones(64, np.float32)])
    yield Operator("LpNormalization", [(1, 512)], attributes={"axis": -1, "p": 2})
    yield Operator("LRN", [IMAGE], attributes={"size": 5})
    yield Operator("MeanVarianceNormalization", [IMAGE])


def _windows() -> Iterator[Operator]:
    square = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    yield Operator("MaxPool", [(1, 64, 112, 112)], attributes=square)
    yield Operator("MaxPool", [(1, 256, 20, 20)], attributes={"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]})
    yield Operator("MaxPool", [(1, 64, 3000)], attributes={"kernel_shape": [3], "strides": [2]})
    yield Operator("AveragePool", [(1, 64, 112, 112)], attributes=square)
    yield Operator("LpPool", [IMAGE], attributes={"kernel_shape": [2, 2], "strides": [2, 2]})
    yield Operator("GlobalAveragePool", [(1, 2048, 7, 7)])
    yield Operator("GlobalMaxPool", [(1, 2048, 7, 7)])
    three = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    yield Operator("Conv", [IMAGE], [_weights(64, 64, 3, 3)], three)
    yield Operator("Conv", [(1, 3, 224, 224)], [_weights(64, 3, 7, 7)], {"strides": [2, 2], "pads": [3, 3, 3, 3]})
    yield Operator("Conv", [(1, 256, 14, 14)], [_weights(1024, 256, 1, 1)])
    yield Operator("Conv", [(1, 96, 112, 112)], [_weights(96, 1, 3, 3)], {**three, "group": 96})
    yield Operator("Conv", [SPEECH], [_weights(384, 80, 3)], {"kernel_shape": [3], "pads": [1, 1]})
    yield Operator("Conv", [(1, 16, 16, 56, 56)], [_weights(16, 16, 3, 3, 3)], {"pads": [1] * 6})
    yield Operator("ConvTranspose", [(1, 128, 28, 28)], [_weights(128, 64, 2, 2)], {"strides": [2, 2]})
    yield Operator("ConvTranspose", [(1, 256, 100)], [_weights(256, 128, 16)], {"strides": [8], "pads": [4, 4]})
    bytes_ = np.random.default_rng(2).integers(-64, 64, (64, 64, 3, 3)).astype(np.int8)
    yield Operator("ConvInteger", [IMAGE], [bytes_, np.uint8(128)], three, dtypes=["uint8"])


def _products() -> Iterator[Operator]:
    yield Operator("MatMul", [TOKENS], [_weights(768, 3072)])
    yield Operator("MatMul", [(1, 1, 576)], [_weights(576, 49152)])
    yield Operator("MatMul", [(1, 12, 128, 64), (1, 12, 64, 128)])
    yield Operator("MatMul", [(1, 12, 197, 197), (1, 12, 197, 64)])
    yield Operator("MatMul", [(1, 128, 127)], [_weights(127, 61)])
    yield Operator("Gemm", [(1, 2048)], [_weights(1000, 2048), _weights(1000)], {"transB": 1})
    yield Operator("Einsum", [(1, 12, 128, 64), (1, 12, 128, 64)], attributes={"equation": "bhqd,bhkd->bhqk"})
    numbers = np.random.default_rng(2).integers(-64, 64, (768, 768)).astype(np.int8)
    yield Operator("MatMulInteger", [TOKENS], [numbers, np.uint8(128)], dtypes=["uint8"])
    for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = [_weights(1, gates * 256, 128), _weights(1, gates * 256, 256)]
        yield Operator(kind, [(100, 1, 128)], weights, {"hidden_size": 256})


def _movements() -> Iterator[Operator]:
    yield Operator("Transpose", [IMAGE], attributes={"perm": [0, 2, 3, 1]})
    yield Operator("Transpose", [(1, 128, 12, 64)], attributes={"perm": [0, 2, 1, 3]})
    yield Operator("Transpose", [BOXES], attributes={"perm": [0, 2, 1]})
    yield Operator("Reshape", [IMAGE], [_axes(1, 64, -1)])
    yield Operator("Concat", [IMAGE, IMAGE], attributes={"axis": 1})
    yield Operator("Split", [IMAGE], attributes={"axis": 1}, outputs=2)
    yield Operator("Slice", [IMAGE], [_axes(0, 0), _axes(56, 56), _axes(2, 3), _axes(2, 2)])
    yield Operator("Pad", [IMAGE], [_axes(0, 0, 1, 1, 0, 0, 1, 1)])
    yield Operator("Pad", [IMAGE], [_axes(0, 0, 1, 1, 0, 0, 1, 1)], {"mode": "reflect"})
    yield Operator("Expand", [(1, 64, 1, 1)], [_axes(*IMAGE)])
    yield Operator("Tile", [(1, 64, 28, 28)], [_axes(1, 1, 2, 2)])
    yield Operator("DepthToSpace", [(1, 256, 56, 56)], attributes={"blocksize": 2})
    yield Operator("SpaceToDepth", [IMAGE], attributes={"blocksize": 2})
    double = [LEFT_OUT, np.float32([1, 1, 2, 2])]
    for mode in ("nearest", "linear", "cubic"):
        yield Operator("Resize", [IMAGE], double, {"mode": mode})
    yield Operator("Gather", [(3000, 256), (128,)], dtypes=["float32", "int64"])
    yield Operator("GatherElements", [(1, 300, 91), (1, 300, 91)], attributes={"axis": 1}, dtypes=["float32", "int64"])
    yield Operator("GatherND", [(100, 100, 64), (500, 2)], dtypes=["float32", "int64"])
    yield Operator("ScatterND", [(100, 256), (50, 1), (50, 256)], dtypes=["float32", "int64"])
    yield Operator("ScatterElements", [(100, 256), (50, 256), (50, 256)], dtypes=["float32", "int64"])
    yield Operator("OneHot", [(1, 128)], [np.int64(1000), np.float32([0, 1])], dtypes=["int64"])
    yield Operator("Trilu", [HEADS])
    yield Operator("ReverseSequence", [(100, 4, 128)], [np.int64([100, 50, 70, 3])])
    yield Operator("GridSample", [(1, 32, 64, 64), (1, 64, 64, 2)])


def _choices() -> Iterator[Operator]:
    yield Operator("TopK", [(1, 8400)], [_axes(300)], outputs=2)
    yield Operator("TopK", [CLASSES], [_axes(5)], outputs=2)
