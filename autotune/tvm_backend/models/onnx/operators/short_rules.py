"""Rules of a few lines each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, Value, attributes_of
from autotune.tvm_backend.types import NodeProto


def scaler(node: NodeProto, nodes: Nodes) -> list[str]:
    """Subtract an offset from each feature and multiply it by a scale (ai.onnx.ml)."""
    attributes = attributes_of(node)
    value = nodes.cast(node.input[0], TensorProto.FLOAT)
    shifted = nodes.op("Sub", value, nodes.constant(attributes.get("offset") or [0.0]))
    return [nodes.op("Mul", shifted, nodes.constant(attributes.get("scale") or [1.0]))]


def linear_regressor(node: NodeProto, nodes: Nodes) -> list[str]:
    """A product with a matrix, and an offset for each target (ai.onnx.ml).

    Raises:
        ValueError: The result is transformed.
    """
    attributes = attributes_of(node)
    if attributes.get("post_transform", "NONE") != "NONE":
        raise ValueError(f"its result is transformed ({attributes['post_transform']}), for which there is no rule")
    targets = int(attributes.get("targets", 1))
    matrix = np.reshape(attributes["coefficients"], (targets, -1)).T
    product = nodes.op("MatMul", nodes.cast(node.input[0], TensorProto.FLOAT), nodes.constant(matrix))
    offsets = attributes.get("intercepts")
    return [nodes.op("Add", product, nodes.constant(offsets)) if offsets else product]


def lp_normalization(node: NodeProto, nodes: Nodes) -> list[str]:
    """Divide by the sum of absolute values, or by the root of the sum of squares, along an axis; 0 where that is 0."""
    attributes = attributes_of(node)
    x = node.input[0]
    axis = int(attributes.get("axis", -1))
    rank = len(nodes.shape(x))
    if int(attributes.get("p", 2)) == 1:
        length = nodes.sum(nodes.op("Abs", x), axis % rank, keeps_axis=True)
    else:
        length = nodes.op("Sqrt", nodes.sum(nodes.op("Mul", x, x), axis % rank, keeps_axis=True))
    zero = nodes.op("Equal", length, nodes.constant_like(0, x))
    return [nodes.op("Div", x, nodes.op("Where", zero, nodes.constant_like(1, x), length))]


def one_hot(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: indices, of which negative ones count from the end, their number, and the values for off and on.

    TVM's importer makes the one-hot encodings of floats in float64, whatever the type of their values.

    Raises:
        ValueError: The number is not constant, or the shape of the indices is not known.
    """
    indices, depth, values = node.input
    count = int(nodes.number(depth))
    shape = list(nodes.shape(indices))
    axis = int(attributes_of(node).get("axis", -1)) % (len(shape) + 1)
    column = nodes.reshape(nodes.cast(indices, TensorProto.INT64), [*shape[:axis], 1, *shape[axis:]])
    from_end = nodes.op("Add", column, nodes.constant([count], np.int64))
    negative = nodes.op("Less", column, nodes.constant([0], np.int64))
    numbers = np.arange(count).reshape(-1, *[1] * (len(shape) - axis))
    hot = nodes.op("Equal", nodes.op("Where", negative, from_end, column), nodes.constant(numbers, np.int64))
    on, off = (nodes.slice(values, 0, index, index + 1) for index in (1, 0))
    return [nodes.op("Where", hot, on, off)]


def reverse_sequence(node: NodeProto, nodes: Nodes) -> list[str]:
    """Reverse the first entries of each sequence of a batch, as many as a second input says."""
    x, lengths = node.input
    attributes = attributes_of(node)
    batch_axis = int(attributes.get("batch_axis", 1))
    time_axis = int(attributes.get("time_axis", 0))
    shape = nodes.shape(x)
    count = shape[batch_axis]
    steps = shape[time_axis]
    numbers = nodes.constant(np.arange(steps)[None], np.int64)
    ends = nodes.reshape(nodes.cast(lengths, TensorProto.INT64), (count, 1))
    mirrored = nodes.op("Sub", nodes.op("Sub", ends, nodes.constant(1, np.int64)), numbers)
    index = nodes.op("Where", nodes.op("Less", numbers, ends), mirrored, numbers)  # (batch, steps)
    if time_axis < batch_axis:
        index = nodes.op("Transpose", index, perm=[1, 0])
    spread = [size if axis in (batch_axis, time_axis) else 1 for axis, size in enumerate(shape)]
    wide = nodes.op("Expand", nodes.reshape(index, spread), nodes.constant(shape, np.int64))
    return [nodes.op("GatherElements", x, wide, axis=time_axis)]


def array_feature_extractor(node: NodeProto, nodes: Nodes) -> list[str]:
    """Take columns of the last axis by their numbers (ai.onnx.ml). A vector is a row."""
    x, columns = node.input
    shape = nodes.shape(x)
    rows = nodes.reshape(x, (1, *shape)) if len(shape) == 1 else x
    count = int(np.prod(nodes.shape(columns), dtype=np.int64))
    return [nodes.op("Gather", rows, nodes.reshape(columns, (count,)), axis=max(len(shape) - 1, 1))]


def binarizer(node: NodeProto, nodes: Nodes) -> list[str]:
    """1 where a number is larger than a threshold, else 0 (ai.onnx.ml)."""
    (x,) = node.input
    threshold = nodes.constant_like(attributes_of(node).get("threshold", 0.0), x)
    return [nodes.cast(nodes.op("Greater", x, threshold), nodes.dtype(x))]


def tensor_scatter(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write rows into a cache from an index of each batch on. Inputs: the cache, the rows, and the indices or none.

    Raises:
        ValueError: A shape is not known.
    """
    cache, update, indices = [*node.input, ""][:3]
    attributes = attributes_of(node)
    shape = nodes.shape(update)
    axis = int(attributes.get("axis", -2)) % len(shape)
    steps = np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1))
    place = nodes.constant(steps, np.int64)
    if indices:
        start = nodes.reshape(nodes.cast(indices, TensorProto.INT64), (shape[0], *[1] * (len(shape) - 1)))
        place = nodes.op("Add", start, place)
    if attributes.get("mode") == "circular":
        place = nodes.op("Mod", place, nodes.constant(nodes.shape(cache)[axis], np.int64))
    wide = nodes.op("Expand", place, nodes.constant(shape, np.int64))
    return [nodes.op("ScatterElements", cache, wide, update, axis=axis)]


def has_output_shape(node: NodeProto) -> bool:
    """Whether an operator is a transposed convolution that names its output's size, which TVM's importer ignores."""
    return node.op_type == "ConvTranspose" and any(item.name == "output_shape" for item in node.attribute)


def conv_transpose(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write a transposed convolution with the padding that gives its output the size which it names.

    Raises:
        ValueError: No padding does: the output is to be larger than what the windows cover by a stride or more.
    """
    attributes = attributes_of(node)
    upper = attributes.pop("auto_pad", "NOTSET") == "SAME_UPPER"
    given = nodes.shape(node.input[0])[2:]
    kernel = nodes.shape(node.input[1])[2:]
    rank = len(given)
    wanted = attributes.pop("output_shape")
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    more = list(attributes.pop("output_padding", None) or [0] * rank)
    before = []
    after = []
    for axis in range(rank):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        total = strides[axis] * (given[axis] - 1) + more[axis] + window - wanted[axis]
        if -total >= strides[axis]:
            raise ValueError(f"an output of {wanted[axis]} is larger than what its windows cover")
        more[axis] -= min(total, 0)  # what no window covers is the bias alone
        total = max(total, 0)
        before.append(total // 2 if upper else total - total // 2)
        after.append(total - before[-1])
    return [nodes.op("ConvTranspose", *node.input, **{**attributes, "pads": [*before, *after], "output_padding": more})]


def is_unsupported_power(node: NodeProto, values: Mapping[str, Value]) -> bool:
    """Whether an operator is a power that TVM does not compute: of integers, or of a base and an exponent of two types.

    Args:
        values: What is known about the values of the graph.
    """
    types = {values[name].dtype for name in node.input if name in values}
    return node.op_type == "Pow" and (len(types) > 1 or not all(map(_is_float, types)))


def power(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write a power of floats of one type. The result has the type of the base, as ONNX says."""
    own, other = map(nodes.dtype, node.input)
    common = next(filter(_is_float, (own, other)), TensorProto.DOUBLE)
    base, exponent = (_as(nodes, name, nodes.dtype(name), common) for name in node.input)
    return [_as(nodes, nodes.op("Pow", base, exponent), common, own)]


def _as(nodes: Nodes, name: str, dtype: int, wanted: int) -> str:
    return name if dtype == wanted else nodes.cast(name, wanted)


def _is_float(dtype: int) -> bool:
    return dtype in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def has_mask(node: NodeProto) -> bool:
    """Whether an operator is a dropout that says what it keeps: TVM's importer takes that for a number."""
    return node.op_type == "Dropout" and len(node.output) > 1 and bool(node.output[1])


def dropout(node: NodeProto, nodes: Nodes) -> list[str]:
    """Outside of training nothing is dropped."""
    x = node.input[0]
    return [nodes.op("Identity", x), nodes.constant(np.ones(nodes.shape(x)), np.bool_)]
