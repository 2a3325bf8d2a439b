"""Which operators of ONNX treat the rows of a tensor one by one, and along which axis of their results these are then.

A rule returns that axis, the same for all results. It raises a ValueError where rows may be mixed, or it is not known.
Exporters read the number of rows to say a shape again that has it. It may be used for that, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy.typing as npt
import onnx

from autotune.tvm_backend.models.onnx.operators.nodes import attributes_of
from autotune.tvm_backend.types import NodeProto

_INTEGERS = frozenset(
    onnx.TensorProto.DataType.Value(f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)
)
_BY_ELEMENT = (
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min",
    "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Softplus", "Sqrt",
    "Sub", "Tanh", "Where", "Xor",
)  # fmt: skip
_SAME = ("Identity", "Reshape", "Squeeze", "Unsqueeze")  # have the elements that they are given
_WIDE = (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
_FIXED_AXES = 13  # opset: from here on Softmax and Split do the same along any axis


Sizes = tuple[int | str, ...]  # a number, or the operator whose rows it counts, by its result


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor.

    Attributes:
        axis: The axis that they are along.
        source: The result of the operator that found them.
    """

    axis: int
    source: str


@dataclass(frozen=True)
class KnownTensors:
    """What is known of the tensors of a graph, by their names.

    Attributes:
        opset: The version of its operators.
        shapes: In their largest size.
        types: The ONNX element types.
        constants: The values of constants.
        rows: The rows of those that have as many as the data say.
        sizes: The elements of those that are made of shapes with rows.
    """

    opset: int
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, int]
    constants: Mapping[str, npt.NDArray[Any]]
    rows: Mapping[str, Rows]
    sizes: Mapping[str, Sizes]

    def integers_of(self, name: str) -> tuple[int, ...] | None:
        """Return the elements of a constant of integers; None for anything else."""
        value = self.constants.get(name)
        return None if value is None or value.dtype.kind not in "iu" else tuple(map(int, value.ravel()))

    def only_first(self, node: NodeProto) -> int:
        """Return the counted axis of the first input, which must be the only one that has one."""
        if node.input[0] not in self.rows or any(name in self.rows for name in node.input[1:]):
            raise ValueError("")
        return self.rows[node.input[0]].axis

    def integers(self, node: NodeProto, attribute: str, place: int) -> list[int]:
        """Return constants that are an attribute in older versions of an operator, and an input in newer ones."""
        given = attributes_of(node).get(attribute)
        if given is None and place < len(node.input) and node.input[place]:
            if node.input[place] not in self.constants:
                raise ValueError(f"its {attribute} are computed")
            given = self.constants[node.input[place]].ravel().tolist()
        return [] if given is None else list(given)


def axis_of_results(node: NodeProto, tensors: KnownTensors) -> int:
    """Return the counted axis of the results of an operator that reads rows, or a size that is their number.

    Raises:
        ValueError: It may not treat the rows one by one. The message says why, if there is more to say.
    """
    is_shaped = node.op_type in _SHAPED and node.input[-1] in tensors.sizes
    if any(name in tensors.sizes for name in (node.input[:-1] if is_shaped else node.input)):
        raise ValueError("it computes with their number")
    rule = _SHAPED[node.op_type] if is_shaped else _RULES.get(node.op_type)
    if rule is None or node.domain not in ("", "ai.onnx"):
        raise ValueError("")
    return rule(node, tensors)


def source_of_results(node: NodeProto, tensors: KnownTensors) -> str:
    """Return the operator whose rows an operator reads, or their number, by its result.

    It is that of the number, or of the places, where it takes so many of other rows.
    """
    takes = node.op_type == "TopK" or takes_rows(node, tensors)
    for name in reversed(node.input) if takes else node.input:
        sizes = [size for size in tensors.sizes.get(name, ()) if isinstance(size, str)]
        if name in tensors.rows or sizes:
            return tensors.rows[name].source if name in tensors.rows else sizes[0]
    raise KeyError(node.input[0])


def sizes_of_result(node: NodeProto, tensors: KnownTensors) -> Sizes | None:
    """Return the elements of the result of an operator on shapes with rows; None for any other operator."""
    x = node.input[0]
    if node.op_type == "Shape" and x in tensors.rows:
        shape: list[int | str] = list(tensors.shapes[x])
        shape[tensors.rows[x].axis] = tensors.rows[x].source
        told = attributes_of(node)
        return tuple(shape[told.get("start", 0) : told.get("end", len(shape))])
    if node.op_type == "Concat" and any(name in tensors.sizes for name in node.input):
        vectors = [tensors.sizes.get(name) or tensors.integers_of(name) for name in node.input]
        return None if None in vectors else tuple(size for vector in vectors for size in vector or ())
    if x not in tensors.sizes:
        return None
    first = tensors.sizes[x]
    constants = [tensors.integers_of(name) for name in node.input[1:]]
    if None in constants:
        return None
    if node.op_type in _SAME or (node.op_type == "Cast" and attributes_of(node)["to"] in _WIDE):
        return first
    if node.op_type == "Gather":
        return tuple(first[place] for place in constants[0] or ())
    if node.op_type == "Slice" and len(constants) > 1:
        start, end, _, step = (vector[0] if vector else 1 for vector in (*constants, None, None)[:4])
        return first[start:end:step]
    return None


def smaller_size(node: NodeProto, tensors: KnownTensors) -> tuple[str, int] | None:
    """Return the operator whose number of rows a Min reads, by its result, and the number that it may not exceed.

    None for any other operator.
    """
    counts = [tensors.sizes[name] for name in node.input if name in tensors.sizes]
    limits = [tensors.integers_of(name) for name in node.input if name not in tensors.sizes]
    if node.op_type != "Min" or [len(item or ()) for item in (*counts, *limits)] != [1, 1]:
        return None
    (count,) = counts[0]
    return (count, (limits[0] or ())[0]) if isinstance(count, str) else None


def _expand(node: NodeProto, tensors: KnownTensors) -> int:
    x, sizes = node.input
    shape = tensors.shapes[x]
    wanted = tensors.sizes[sizes]
    counted = {(place - len(wanted), size) for place, size in enumerate(wanted) if isinstance(size, str)}
    if x in tensors.rows:
        counted.add((tensors.rows[x].axis - len(shape), tensors.rows[x].source))
    if len(counted) != 1:
        raise ValueError("it has rows of two counts, or along two axes")
    ((from_end, source),) = counted
    if x not in tensors.rows and len(shape) >= -from_end and shape[from_end] != 1:
        raise ValueError("its input has a number of rows of its own")
    if len(wanted) >= -from_end and wanted[from_end] not in (1, source):
        raise ValueError("it names another number of rows")
    return max(len(shape), len(wanted)) + from_end


def _of_shape(node: NodeProto, tensors: KnownTensors) -> int:
    places = [place for place, size in enumerate(tensors.sizes[node.input[0]]) if isinstance(size, str)]
    if len(places) != 1:
        raise ValueError("it has rows along two axes")
    return places[0]


def _reshape_to(node: NodeProto, tensors: KnownTensors) -> int:
    x, sizes = node.input
    if x not in tensors.rows:
        raise ValueError("it gives them to what has none")
    place = _kept_place(node, tensors, tensors.rows[x].axis)
    wanted = list(tensors.sizes[sizes])
    if wanted[place] not in (-1, tensors.rows[x].source) or any(
        isinstance(size, str) for size in wanted[:place] + wanted[place + 1 :]
    ):
        raise ValueError("it gives the rows another shape")
    return place


def _by_element(node: NodeProto, tensors: KnownTensors) -> int:
    ranks = {name: len(tensors.shapes[name]) for name in node.input if name}
    counted = {(rows.axis - ranks[name], rows.source) for name, rows in tensors.rows.items() if name in ranks}
    if len(counted) > 1:
        raise ValueError("its inputs have rows of two counts, or along two axes")
    ((from_end, _),) = counted
    for name in ranks.keys() - tensors.rows.keys():
        if ranks[name] >= -from_end and tensors.shapes[name][from_end] != 1:
            raise ValueError("another of its inputs has a number of rows of its own")
    if (
        node.op_type in ("Div", "Mod")
        and node.input[1] in tensors.rows
        and tensors.types.get(node.input[1]) in _INTEGERS
    ):
        raise ValueError("it divides by integers, which are 0 beyond the count")
    return max(ranks.values()) + from_end


def _reshaping(node: NodeProto, tensors: KnownTensors) -> int:
    axis = tensors.only_first(node)
    if node.op_type == "Squeeze" and not tensors.integers(node, "axes", 1):
        raise ValueError("it names no axes")
    place = _kept_place(node, tensors, axis)
    wanted = tensors.integers(node, "shape", 1)[place] if node.op_type == "Reshape" else -1
    single = node.op_type == "Flatten" and tensors.shapes[node.output[0]][place] == 1  # which may be any dimension
    if single or (wanted != -1 and (wanted, place) != (0, axis)):
        raise ValueError("it gives the rows another shape")
    return place


def _kept_place(node: NodeProto, tensors: KnownTensors, axis: int) -> int:
    """Return the axis of a reshaped tensor that is this one as it was."""
    before = tensors.shapes[node.input[0]]
    after = tensors.shapes[node.output[0]]
    places = [
        place
        for place, size in enumerate(after)
        if (size, prod(after[:place]), prod(after[place + 1 :]))
        == (before[axis], prod(before[:axis]), prod(before[axis + 1 :]))
    ]
    if len(places) != 1:
        raise ValueError("it gives the rows another shape")
    return places[0]


def _transpose(node: NodeProto, tensors: KnownTensors) -> int:
    axis = tensors.only_first(node)
    rank = len(tensors.shapes[node.input[0]])
    return list(attributes_of(node).get("perm") or reversed(range(rank))).index(axis)


def _gather(node: NodeProto, tensors: KnownTensors) -> int:
    data, indices = node.input
    along = int(attributes_of(node).get("axis", 0)) % len(tensors.shapes[data])
    if data not in tensors.rows or takes_rows(node, tensors):
        return along + tensors.rows[indices].axis
    axis = tensors.only_first(node)
    if axis == along:
        raise ValueError("it takes single rows")
    return axis if axis < along else axis - 1 + len(tensors.shapes[indices])


def takes_rows(node: NodeProto, tensors: KnownTensors) -> bool:
    """Return whether a Gather takes rows of a tensor at places of which there are as many as the data say."""
    if node.op_type != "Gather" or not all(name in tensors.rows for name in node.input):
        return False
    data = node.input[0]
    return tensors.rows[data].axis == int(attributes_of(node).get("axis", 0)) % len(tensors.shapes[data])


def is_top_of_rows(node: NodeProto, tensors: KnownTensors) -> bool:
    """Return whether an operator is a TopK among rows."""
    if node.op_type != "TopK" or node.input[0] not in tensors.rows:
        return False
    rank = len(tensors.shapes[node.input[0]])
    return tensors.rows[node.input[0]].axis == int(attributes_of(node).get("axis", -1)) % rank


def _top_k(node: NodeProto, tensors: KnownTensors) -> int:
    if node.input[1] in tensors.sizes and not is_top_of_rows(node, tensors):
        raise ValueError("it takes as many as there are rows")
    return tensors.only_first(node)


def _gather_nd(node: NodeProto, tensors: KnownTensors) -> int:
    data, indices = node.input
    rank = len(tensors.shapes[indices])
    whole = tensors.shapes[indices][-1] <= len(tensors.shapes[data]) and not attributes_of(node).get("batch_dims")
    if data in tensors.rows or not whole or tensors.rows[indices].axis == rank - 1:
        raise ValueError("")
    return tensors.rows[indices].axis


def first_rows(node: NodeProto, tensors: KnownTensors) -> int | None:
    """Return how many rows an operator that reads rows leaves at most, from the first on; None if it leaves all.

    Raises:
        ValueError: It takes others than the first ones.
    """
    axis = tensors.rows[node.input[0]].axis if node.input[0] in tensors.rows else 0
    if is_top_of_rows(node, tensors) and (most := tensors.integers_of(node.input[1])):
        return most[0]
    if node.op_type != "Slice":
        return None
    rank = len(tensors.shapes[node.input[0]])
    starts, ends, axes = (
        tensors.integers(node, name, place) for place, name in enumerate(("starts", "ends", "axes"), 1)
    )
    steps = tensors.integers(node, "steps", 4) or [1] * len(starts)
    for start, end, along, step in zip(starts, ends, axes or range(len(starts)), steps, strict=True):
        if along % rank == axis and ((start, step) != (0, 1) or end <= 0):
            raise ValueError("it takes others than the first rows")
        if along % rank == axis and end < tensors.shapes[node.input[0]][axis]:
            return int(end)
    return None


def _concat(node: NodeProto, tensors: KnownTensors) -> int:
    joined = {tensors.rows.get(name) for name in node.input}
    rows = next(iter(joined))
    along = int(attributes_of(node)["axis"]) % len(tensors.shapes[node.input[0]])
    if rows is None or len(joined) > 1 or rows.axis == along:
        raise ValueError("it joins rows with others")
    return rows.axis


def _along_axis(node: NodeProto, tensors: KnownTensors) -> int:
    axis = tensors.only_first(node)
    rank = len(tensors.shapes[node.input[0]])
    default = -1 if "Softmax" in node.op_type else 0
    if tensors.opset < _FIXED_AXES or int(attributes_of(node).get("axis", default)) % rank == axis:
        raise ValueError("")
    without = node.op_type.startswith("Arg") and not attributes_of(node).get("keepdims", 1)
    return axis - (without and int(attributes_of(node).get("axis", 0)) % rank < axis)


def _reduce(node: NodeProto, tensors: KnownTensors) -> int:
    axis = tensors.only_first(node)
    rank = len(tensors.shapes[node.input[0]])
    axes = {along % rank for along in tensors.integers(node, "axes", 1)}
    if not axes or axis in axes:
        raise ValueError("")
    return axis if attributes_of(node).get("keepdims", 1) else axis - sum(along < axis for along in axes)


def _product(node: NodeProto, tensors: KnownTensors) -> int:
    axis = tensors.only_first(node)
    rank = len(tensors.shapes[node.input[0]])
    if len(tensors.shapes[node.input[1]]) != 2 or axis != rank - 2:
        raise ValueError("")
    return axis


_RULES: Mapping[str, Callable[[NodeProto, KnownTensors], int]] = {
    **dict.fromkeys(_BY_ELEMENT, _by_element),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshaping),
    **dict.fromkeys(("ArgMax", "ArgMin", "LogSoftmax", "Softmax", "Split"), _along_axis),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), _reduce),
    "Concat": _concat,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "MatMul": _product,
    "Slice": lambda node, tensors: tensors.only_first(node),
    "TopK": _top_k,
    "Transpose": _transpose,
}
_SHAPED: Mapping[str, Callable[[NodeProto, KnownTensors], int]] = {
    "ConstantOfShape": _of_shape,
    "Expand": _expand,
    "Reshape": _reshape_to,
    "TopK": _top_k,
}
