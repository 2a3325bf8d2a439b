"""The inputs and outputs of a model as a session of ONNX Runtime describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from autotune.tvm_backend.types import ModelProto, ValueInfoProto

_OTHER_NAMES = {"float32": "float", "float64": "double"}
_NAMES = {
    1: "float", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "double", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
Shape = list[int | str | None]


class NodeArg:
    """An input or an output, with the attributes of `onnxruntime.NodeArg`.

    Attributes:
        name: Its name.
        type: Its type, such as `tensor(float)`.
    """

    def __init__(self, name: str, type: str, shape: Shape | Callable[[], Shape]) -> None:
        self.name = name
        self.type = type
        self._shape = shape

    @property
    def shape(self) -> Shape:
        """Its shape: a number, the name of an open dimension, or None for one without a name."""
        if callable(self._shape):
            self._shape = self._shape()
        return self._shape

    def __repr__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


def described_inputs(proto: ModelProto) -> list[NodeArg] | None:
    """Return the inputs of a model; None if one is of a kind that only ONNX Runtime describes."""
    constants = {item.name for item in proto.graph.initializer}
    items = [(item, _shape(item)) for item in proto.graph.input if item.name not in constants]
    args = [NodeArg(item.name, _type(item), shape) for item, shape in items if shape is not None and _is_tensor(item)]
    return args if len(args) == len(items) else None


def described_outputs(proto: ModelProto, shape_of: Callable[[int], Shape]) -> list[NodeArg] | None:
    """Return the outputs of a model; None if one is of a kind that only ONNX Runtime describes.

    Args:
        shape_of: Returns the shape of an output that ONNX Runtime infers, where the file says less.
    """
    items = list(proto.graph.output)
    if not all(map(_is_tensor, items)):
        return None
    shapes = [_fixed(item) or partial(shape_of, index) for index, item in enumerate(items)]
    return [NodeArg(item.name, _type(item), shape) for item, shape in zip(items, shapes, strict=True)]


def of_report(report: Mapping[str, Any]) -> tuple[Sequence[NodeArg], Sequence[NodeArg]]:
    """Return the inputs and outputs that the report of an export names."""
    padding = report.get("padding") or {}
    open_inputs = padding.get("inputs") or {}
    inputs = [_of_json(item, open_inputs.get(item["name"], ())) for item in report["inputs"]]
    open_outputs = padding.get("outputs") or [()] * len(report["outputs"])
    outputs = [_of_json(item, dims) for item, dims in zip(report["outputs"], open_outputs, strict=True)]
    return inputs, outputs


def _of_json(item: Mapping[str, Any], dims: Sequence[str]) -> NodeArg:
    shape = [dim or size for dim, size in zip(dims or [""] * len(item["shape"]), item["shape"], strict=True)]
    return NodeArg(item["name"], f"tensor({_OTHER_NAMES.get(item['dtype'], item['dtype'])})", shape)


def _is_tensor(item: ValueInfoProto) -> bool:
    return item.type.tensor_type.elem_type in _NAMES


def _type(item: ValueInfoProto) -> str:
    return f"tensor({_NAMES[item.type.tensor_type.elem_type]})"


def _shape(item: ValueInfoProto) -> Shape | None:
    """The shape that the file gives an input; None where it gives none, or a size that is none."""
    tensor = item.type.tensor_type
    if not tensor.HasField("shape") or any(dim.HasField("dim_value") and dim.dim_value < 1 for dim in tensor.shape.dim):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]


def _fixed(item: ValueInfoProto) -> Shape | None:
    shape = _shape(item)
    return shape if shape and all(isinstance(size, int) for size in shape) else None
