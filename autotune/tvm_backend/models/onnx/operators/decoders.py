"""The operators of decoders as ONNX Runtime GenAI's builder writes them, in products and a softmax.

Their meaning is that of ONNX Runtime's documentation (docs/ContribOperators.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from autotune.tvm_backend.models.onnx.operators.attention import by_heads, side_by_side
from autotune.tvm_backend.models.onnx.operators.contrib import divided_by_root_mean_square, padded
from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, attributes_of
from autotune.tvm_backend.types import NodeProto

_HIDDEN = float(np.finfo(np.float32).min)  # what is added to the score of a key that is not looked at
_UNKNOWN_INPUTS = {11: "a sink of its heads", 12: "keys in integers", 13: "values in integers"}
_UNKNOWN_ATTRIBUTES = ("smooth_softmax", "qk_output", "kv_cache_bit_width")
_HALF_BYTES = {TensorProto.INT4: TensorProto.INT8, TensorProto.UINT4: TensorProto.UINT8}


def simplified_layer_normalization(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: x and the scale. The mean of the last axis is not taken away.

    Raises:
        ValueError: It is over another axis, or its deviation is read.
    """
    x, gamma = node.input[:2]
    attributes = attributes_of(node)
    if int(attributes.get("axis", -1)) not in (-1, len(nodes.shape(x)) - 1):
        raise ValueError("it is not over the last axis, for which there is no rule")
    if any(node.output[1:]):
        raise ValueError("its deviation is read, for which there is no rule")
    return [divided_by_root_mean_square(nodes, x, gamma, float(attributes.get("epsilon", 1e-5)), x)]


def rotary_embedding(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: x (batch, steps, heads * size) or (batch, heads, steps, size), the positions, cosines and sines.

    Raises:
        ValueError: It is of a form for which there is no rule.
    """
    x, positions, cosines, sines = node.input[:4]
    attributes = attributes_of(node)
    if attributes.get("is_packed_batching") or float(attributes.get("scale", 1.0)) != 1.0:
        raise ValueError("its batches are packed, or it scales, for which there is no rule")
    shape = nodes.shape(x)
    steps = shape[-2]
    if len(shape) == 4:
        heads = x
    else:
        count = int(attributes.get("num_heads", 0)) or shape[2] // (2 * nodes.shape(cosines)[1])
        heads = by_heads(nodes, x, shape, count)
    if nodes.shape(positions) in ((), (1,)):
        first = nodes.reshape(positions, (1, 1))
        positions = nodes.op("Add", first, nodes.constant(np.arange(steps)[None], np.int64))
    size = shape[-1] if len(shape) == 4 else shape[2] // count
    rotated = _rotated(nodes, heads, size, (cosines, sines), positions, bool(attributes.get("interleaved")))
    return [rotated if len(shape) == 4 else side_by_side(nodes, rotated, shape)]


def group_query_attention(node: NodeProto, nodes: Nodes) -> list[str]:
    """Attention of queries whose heads share keys and values, which are kept for later steps.

    Inputs: query (or all three packed), key, value, past keys and values (batch, heads, past, size), the last position
    of each row, the number of positions, and cosines and sines. Outputs: the result, and all keys and values so far,
    which have as many places as the past, or as there are positions.

    Raises:
        UnknownValue: The number of positions is not known.
        ValueError: It is of a form for which there is no rule.
    """
    attributes = attributes_of(node)
    names = padded(node.input, 14)
    _refuse_unknown(attributes, names)
    query, key, value, past_key, past_value, last, total, cosines, sines, positions, added = names[:11]
    heads = int(attributes["num_heads"])
    shared = int(attributes["kv_num_heads"])
    batch, steps, width = nodes.shape(query)
    if not key:
        size = width // (heads + 2 * shared)
        ends = [0, heads * size, (heads + shared) * size, width]
        query, key, value = (nodes.slice(query, 2, ends[part], ends[part + 1]) for part in range(3))
    else:
        size = width // heads
    first = _first_positions(nodes, last, steps)
    counts = (heads, shared, shared)
    split = [
        by_heads(nodes, part, (batch, steps, count * size), count)
        for part, count in zip((query, key, value), counts, strict=True)
    ]
    if attributes.get("do_rotary"):
        steps_of_rows = nodes.constant(np.arange(steps)[None], np.int64)
        positions = positions or nodes.op("Add", first, steps_of_rows)
        interleaved = bool(attributes.get("rotary_interleaved"))
        split[:2] = [_rotated(nodes, part, size, (cosines, sines), positions, interleaved) for part in split[:2]]
    kept_sizes = (batch, shared, steps, size)
    places = _places(node, nodes, past_key, total)
    keys = _kept(nodes, past_key, split[1], first, kept_sizes, places)
    values = _kept(nodes, past_value, split[2], first, kept_sizes, places)
    seen = _seen(nodes, first, steps, places, int(attributes.get("local_window_size", -1)))
    sizes = (batch, heads, shared, steps, size, places)
    result = _attended(nodes, (split[0], keys, values), sizes, seen, added, attributes)
    return [side_by_side(nodes, result, (batch, steps, heads * size)), keys, values]


def gather_block_quantized(node: NodeProto, nodes: Nodes) -> list[str]:
    """Rows of a table in blocks of integers, as floats. Inputs: the integers, indices, scales and zero points.

    Raises:
        ValueError: It is of a form for which there is no rule.
    """
    data, indices, scales, zeros = padded(node.input, 4)
    attributes = attributes_of(node)
    rank = len(nodes.shape(data))
    axes = int(attributes.get("gather_axis", 0)), int(attributes.get("quantize_axis", 1)) % rank
    if (rank, *axes) != (2, 0, 1) or nodes.dtype(data) not in (TensorProto.UINT8, *_HALF_BYTES):
        raise ValueError("it is not of rows of a table of integers, for which there is no rule")
    whole = _HALF_BYTES.get(nodes.dtype(data))  # no operator reads integers of four bits but Cast
    bits = 8 if whole else int(attributes.get("bits", 4))  # of an element, in a byte
    block = int(attributes["block_size"])
    shape = (*nodes.shape(indices), nodes.shape(scales)[1])

    def rows(table: str) -> str:
        read = nodes.op("Gather", nodes.cast(table, whole) if whole else table, indices, axis=0)
        return _unpacked(nodes, read, bits)

    elements = nodes.reshape(rows(data), (*shape, block))
    middle = nodes.constant(0.0 if whole else float(2 ** (bits - 1)))
    if zeros:
        middle = nodes.reshape(rows(zeros), (*shape, -1))
        middle = nodes.slice(middle, len(shape), 0, 1) if bits == 8 else middle
    around = nodes.op("Sub", elements, middle)
    scale = nodes.reshape(nodes.op("Gather", scales, indices, axis=0), (*shape, 1))
    return [nodes.reshape(nodes.op("Mul", around, scale), (*shape[:-1], shape[-1] * block))]


def _unpacked(nodes: Nodes, data: str, bits: int) -> str:
    """Bytes as floats, each of which holds one element, or two of four bits, the lower first."""
    floats = nodes.cast(data, TensorProto.FLOAT)
    if bits == 8:
        return floats
    sixteen = nodes.constant(16.0)
    upper = nodes.op("Floor", nodes.op("Div", floats, sixteen))
    lower = nodes.op("Sub", floats, nodes.op("Mul", upper, sixteen))
    behind = nodes.constant([-1], np.int64)
    return nodes.op("Concat", *(nodes.op("Unsqueeze", part, behind) for part in (lower, upper)), axis=-1)


def _refuse_unknown(attributes: Mapping[str, Any], names: Sequence[str]) -> None:
    unknown = [what for place, what in _UNKNOWN_INPUTS.items() if names[place]]
    unknown += [name for name in _UNKNOWN_ATTRIBUTES if int(attributes.get(name, 0)) > 0]
    if unknown:
        raise ValueError(f"it has {' and '.join(unknown)}, for which there is no rule")
    if not names[3] or not names[4]:
        raise ValueError("it keeps nothing of earlier steps, for which there is no rule")


def _rotated(nodes: Nodes, x: str, size: int, angles: tuple[str, str], positions: str, interleaved: bool) -> str:
    """Heads (batch, heads, steps, size) whose pairs of elements are rotated by the angles of their positions."""
    half = nodes.shape(angles[0])[1]
    rotary = 2 * half
    turned = x if rotary == size else nodes.slice(x, 3, 0, rotary)
    axis = nodes.constant([1], np.int64)
    cosine, sine = (nodes.op("Unsqueeze", nodes.op("Gather", table, positions, axis=0), axis) for table in angles)
    if interleaved:
        step = nodes.constant([2], np.int64)
        last = nodes.constant([3], np.int64)
        end = nodes.constant([rotary], np.int64)
        one, other = (nodes.op("Slice", turned, nodes.constant([start], np.int64), end, last, step) for start in (0, 1))
    else:
        one, other = (nodes.slice(turned, 3, start, start + half) for start in (0, half))
    first = nodes.op("Sub", nodes.op("Mul", one, cosine), nodes.op("Mul", other, sine))
    second = nodes.op("Add", nodes.op("Mul", one, sine), nodes.op("Mul", other, cosine))
    if interleaved:
        behind = nodes.constant([4], np.int64)
        pairs = [nodes.op("Unsqueeze", part, behind) for part in (first, second)]
        joined = nodes.op("Reshape", nodes.op("Concat", *pairs, axis=4), nodes.constant([0, 0, 0, rotary], np.int64))
    else:
        joined = nodes.op("Concat", first, second, axis=3)
    return joined if rotary == size else nodes.op("Concat", joined, nodes.slice(x, 3, rotary, size), axis=3)


def _first_positions(nodes: Nodes, last: str, steps: int) -> str:
    """The position of the first step of each row, (batch, 1): the last one is given."""
    rows = nodes.reshape(nodes.cast(last, TensorProto.INT64), (-1, 1))
    return nodes.op("Sub", rows, nodes.constant(steps - 1, np.int64))


def _places(node: NodeProto, nodes: Nodes, past: str, total: str) -> int:
    """How many places the keys so far have: as many as the past, or as there are positions.

    Raises:
        UnknownValue: The number of positions is no constant.
    """
    keys = nodes.values.get(node.output[1]) if len(node.output) > 1 else None
    if keys is not None and keys.shape is not None:
        return keys.shape[2]
    return max(nodes.shape(past)[2], int(nodes.number(total)))


def _kept(nodes: Nodes, past: str, new: str, first: str, sizes: Sequence[int], places: int) -> str:
    """The past with new steps at their positions and zeros behind them, (batch, shared, places, size)."""
    batch, shared, steps, size = sizes
    filled = nodes.shape(past)[2]
    if filled < places:
        zeros = nodes.constant_like(np.zeros((batch, shared, places - filled, size)), past)
        past = nodes.op("Concat", past, zeros, axis=2)
    numbers = nodes.constant(np.arange(places)[None], np.int64)
    turn = nodes.op("Sub", numbers, first)  # of each place, which of the new steps belongs there: (batch, places)
    limits = (nodes.constant(0, np.int64), nodes.constant(steps - 1, np.int64))
    spread = []
    for row, own in zip(nodes.split(new, 0, 1, batch), nodes.split(turn, 0, 1, batch), strict=True):
        near = nodes.op("Min", nodes.op("Max", nodes.reshape(own, (places,)), limits[0]), limits[1])
        spread.append(nodes.op("Gather", row, near, axis=2))
    placed = nodes.concat(spread, 0)
    before_them, behind_them = (
        nodes.reshape(nodes.op(kind, turn, limit), (batch, 1, places, 1))
        for kind, limit in (("Less", limits[0]), ("Greater", limits[1]))
    )
    new_or_zero = nodes.op("Where", behind_them, nodes.constant(0.0), placed)
    return nodes.op("Where", before_them, past, new_or_zero)


def _seen(nodes: Nodes, first: str, steps: int, places: int, window: int) -> str:
    """Which places each step looks at, (batch, 1, 1, steps, places): its own and those before, or those near it."""
    steps_of_rows = nodes.constant(np.arange(steps)[None], np.int64)
    here = nodes.reshape(nodes.op("Add", first, steps_of_rows), (-1, 1, 1, steps, 1))
    there = nodes.constant(np.arange(places)[None, None, None, None], np.int64)
    seen = nodes.op("Not", nodes.op("Greater", there, here))
    if window <= 0:
        return seen
    oldest = nodes.op("Sub", here, nodes.constant(window, np.int64))
    return nodes.op("And", seen, nodes.op("Greater", there, oldest))


def _attended(
    nodes: Nodes,
    heads_of: tuple[str, str, str],
    sizes: Sequence[int],
    seen: str,
    added: str,
    attributes: Mapping[str, Any],
) -> str:
    """softmax(scale * Q K' + added) V, (batch, heads, steps, size). Queries that share keys are rows of a product."""
    query, keys, values = heads_of
    batch, heads, shared, steps, size, places = sizes
    group = heads // shared
    rows = nodes.reshape(query, (batch, shared, group * steps, size))
    scale = float(attributes.get("scale") or 1 / math.sqrt(size))
    product = nodes.op("MatMul", rows, nodes.op("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = nodes.op("Mul", product, nodes.constant(scale))
    softcap = float(attributes.get("softcap", 0.0))
    if softcap:
        limit = nodes.constant(softcap)
        scores = nodes.op("Mul", nodes.op("Tanh", nodes.op("Div", scores, limit)), limit)
    scores = nodes.reshape(scores, (batch, shared, group, steps, places))
    if added:
        shape = nodes.shape(added)
        by_group = (shape[0], shared, group, *shape[2:]) if shape[1] == heads else (shape[0], 1, 1, *shape[2:])
        scores = nodes.op("Add", scores, nodes.reshape(added, by_group))
    scores = nodes.op("Where", seen, scores, nodes.constant(_HIDDEN))
    weights = nodes.reshape(nodes.op("Softmax", scores, axis=-1), (batch, shared, group * steps, places))
    return nodes.reshape(nodes.op("MatMul", weights, values), (batch, heads, steps, size))
