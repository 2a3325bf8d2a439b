"""Write ONNX operators one after the other, in the forms that a given opset has for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from autotune.tvm_backend.types import ModelProto, NodeProto, TensorProto

ADVICE = "see what is supported in docs/guides/models.md"
_FEW = 16  # TVM makes one kernel of a Split or a Concat, which takes long to compile and to tune if it has many parts


@dataclass(frozen=True)
class Value:
    """What is known about a value of a graph: its ONNX element type and, where all its dimensions are known, these."""

    dtype: int
    shape: tuple[int, ...] | None

    def text(self) -> str:
        """Return its type and shape for the user."""
        name = onnx.TensorProto.DataType.Name(self.dtype).lower() if self.dtype else "?"
        return name if self.shape is None else f"{name} {'x'.join(map(str, self.shape)) or 'scalar'}"


class UnknownValue(ValueError):
    """A rule asks for a shape, a type or a constant that is not known, or not yet."""


@dataclass
class Nodes:
    """The operators that take the place of one.

    `values` are what is known of those around it, and `numbers` the constants of one element. `is_last` says that
    nothing more will be known.

    A name that is given to a method is a value's; what a method returns is the name of a new one.
    """

    prefix: str
    opset: int
    values: Mapping[str, Value]
    numbers: Mapping[str, float] = field(default_factory=dict)
    is_last: bool = False
    written: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One operator with one output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """One operator with several outputs."""
        outputs = [f"{self.prefix}.{len(self.written)}.{index}" for index in range(count)]
        self.written.append(onnx.helper.make_node(kind, list(inputs), outputs, outputs[0], **attributes))
        return outputs

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        name = f"{self.prefix}.constant.{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def constant_like(self, value: npt.ArrayLike, name: str) -> str:
        """A constant of the type of another value."""
        return self.constant(value, onnx.helper.tensor_dtype_to_np_dtype(self.dtype(name)))

    def shape(self, name: str) -> tuple[int, ...]:
        """The dimensions of a value.

        Raises:
            UnknownValue: They are not known.
        """
        value = self.values.get(name)
        if value is None or value.shape is None:
            raise UnknownValue(f"the shape of {name!r} is not known")
        return value.shape

    def number(self, name: str) -> float:
        """The only element of a constant.

        Raises:
            UnknownValue: It is no constant, or has several.
        """
        if name not in self.numbers:
            raise UnknownValue(f"{name!r} is not a constant number")
        return self.numbers[name]

    def dtype(self, name: str) -> int:
        """The ONNX element type of a value.

        Raises:
            UnknownValue: It is not known.
        """
        if name not in self.values:
            raise UnknownValue(f"the type of {name!r} is not known")
        return self.values[name].dtype

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return self.op("Reshape", x, self.constant(shape, np.int64))

    def cast(self, x: str, dtype: int) -> str:
        return self.op("Cast", x, to=dtype)

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        """The part of `x` from `start` to before `end`."""
        return self.op("Slice", x, *(self.constant([item], np.int64) for item in (start, end, axis)))

    def split(self, x: str, axis: int, size: int, count: int) -> list[str]:
        """`x` in `count` parts of `size` along an axis, by a few cuts at a time."""
        if count == 1:
            return [x]
        step = _FEW ** max(0, math.ceil(math.log(count, _FEW) - 1e-9) - 1)
        counts = [step] * (count // step) + [count % step] * (count % step > 0)
        sizes = [size * item for item in counts]
        if self.opset < 13:
            pieces = self.ops("Split", len(sizes), x, axis=axis, split=sizes)
        else:
            pieces = self.ops("Split", len(sizes), x, self.constant(sizes, np.int64), axis=axis)
        return [part for own, item in zip(pieces, counts, strict=True) for part in self.split(own, axis, size, item)]

    def concat(self, pieces: Sequence[str], axis: int) -> str:
        """Join along an axis, a few at a time."""
        joined = list(pieces)
        while len(joined) > 1:
            groups = [joined[first : first + _FEW] for first in range(0, len(joined), _FEW)]
            joined = [self.op("Concat", *group, axis=axis) if len(group) > 1 else group[0] for group in groups]
        return joined[0]

    def sum(self, x: str, axis: int, *, keeps_axis: bool = False) -> str:
        """The sum along an axis, which stays as one of size 1 if `keeps_axis`."""
        if self.opset < 13:
            return self.op("ReduceSum", x, axes=[axis], keepdims=int(keeps_axis))
        return self.op("ReduceSum", x, self.constant([axis], np.int64), keepdims=int(keeps_axis))

    def clip(self, x: str, low: float, high: float) -> str:
        return self.op("Clip", x, self.constant(low), self.constant(high))


def opset_of(proto: ModelProto) -> int:
    """The version of ONNX's own operators that a graph is written in."""
    return next((int(item.version) for item in proto.opset_import if item.domain in ("", "ai.onnx")), 1)


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """An operator's attributes by name, texts as `str`."""
    return {item.name: _text(onnx.helper.get_attribute_value(item)) for item in node.attribute}


def text_attribute(attributes: Mapping[str, Any], name: str, default: str = "") -> str:
    """A text among an operator's attributes as TVM's importer has them, in bytes."""
    return str(_text(attributes.get(name, default)))


def node_name(node: NodeProto) -> str:
    """An operator's name, or that of its first output; empty if it has neither."""
    return node.name or next(filter(None, node.output), "")


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return [_text(item) for item in value] if isinstance(value, list) else value
