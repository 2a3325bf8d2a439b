"""Winograd's algorithm for 3x3 convolutions of channel-blocked tensors: a quarter of the multiplications.

F(4x4, 3x3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4.3: tiles of
6x6 of the input become 36 numbers each, which are multiplied with 36 transformed weights and summed over the channels,
36 matrix products in all, and give tiles of 4x4 of the output. Results are off by some 1e-5 of the largest, where a
direct sum is off by 1e-6. The products are tuned as any matrix product is; what comes before and after is scheduled
by the two rules of `search/winograd_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from autotune.tvm_backend.graph.convolution import Array, Window, pack_weight
from autotune.tvm_backend.graph.rewrite import float_dtype, static_shape
from autotune.tvm_backend.search.winograd_rules import PATCH, TILE

_INPUT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_WEIGHT = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_OUTPUT = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)
# In multiplications and additions: transforming a number, and reading a weight from memory, as in a whole model. That
# one is for each element of a vector, as wider vectors do not read faster (`scripts/measure_winograd.py`).
_TRANSFORM_COST = 40
_WEIGHT_COST = 1.4
# Of what is kept between the transforms, which is 2.25 times as large as the input and the output.
_MOST_BYTES = 2**28
_LEFT_ALONE = {"schedule_rule": "None"}  # by MetaSchedule; the rule of a later block does what is to be done


def winograd_pays(call: Any, vector: int) -> bool:
    """Whether a packed convolution in float32 is one for this algorithm, and expected to take less time so.

    Args:
        vector: elements of a vector register.
    """
    attrs, kernel = call.attrs, static_shape(call.args[1])
    ones = [int(item) for item in (*attrs.strides, *attrs.dilation, attrs.groups)]
    if kernel[2:] != (3, 3) or set(ones) != {1} or float_dtype(call) != "float32":
        return False
    (outputs, inputs), (batch, _, height, width) = kernel[:2], static_shape(call)
    tiles = batch * -(-height // TILE) * -(-width // TILE)
    reading = _WEIGHT_COST * vector
    direct = 9 * outputs * inputs * (batch * height * width + reading)
    between = PATCH**2 * tiles * (inputs + outputs)
    fast = PATCH**2 * outputs * inputs * (tiles + reading) + between * _TRANSFORM_COST
    return fast < direct and between * 4 <= _MOST_BYTES


def transform_weight(weight: Array, block_in: int, block_out: int) -> Array:
    """(O, I, 3, 3) as (36, OC, IC, bi, bo), transformed in float64."""
    rows = np.array(_WEIGHT)
    wide = np.einsum("ak,oikl,bl->oiab", rows, weight.astype(np.float64), rows)
    packed = pack_weight(wide, block_in, block_out)  # (OC, IC, 6, 6, bi, bo)
    outer, inner = packed.shape[:2]
    flat = np.transpose(packed, (2, 3, 0, 1, 4, 5)).reshape(PATCH**2, outer, inner, block_in, block_out)
    return flat.astype(weight.dtype)


def te_winograd(data: Any, kernel: Any, window: Window) -> Any:
    """data (N, IC, H, W, bi) and a transformed kernel (36, OC, IC, bi, bo) give (N, OC, OH, OW, bo)."""
    height, width = window.size
    down, across = -(-height // TILE), -(-width // TILE)
    product = _te_product(_te_input(data, window, down, across), kernel)
    batch, outer, lanes, dtype = data.shape[0], kernel.shape[1], kernel.shape[-1], data.dtype

    def column(n: Any, o: Any, y: Any, x: Any, i: Any, b: Any, lane: Any) -> Any:
        at = (n * down + y) * across + x
        return _times(_OUTPUT, i, lambda k: product[k * PATCH + b, o, at, lane], dtype)

    tiles = (batch, outer, down, across, TILE, PATCH, lanes)
    columns = te.compute(tiles, column, name="winograd_columns", attrs=_LEFT_ALONE)

    def element(n: Any, o: Any, h: Any, w: Any, lane: Any) -> Any:
        tile = (n, o, h // TILE, w // TILE, h % TILE)
        return _times(_OUTPUT, w % TILE, lambda k: columns[(*tile, k, lane)], dtype)

    results = (batch, outer, height, width, lanes)
    return te.compute(results, element, name="winograd_output", attrs={"schedule_rule": "winograd_output"})


def _te_input(data: Any, window: Window, down: int, across: int) -> Any:
    """(N, IC, H, W, bi) as (36, IC, N * down * across, bi)."""
    batch, chunks, height, width, lanes = data.shape
    (top, left), dtype = window.padding[:2], data.dtype

    def padded(n: Any, c: Any, h: Any, w: Any, lane: Any) -> Any:
        inside = tirx.all(h >= top, h < top + height, w >= left, w < left + width)
        return tirx.if_then_else(inside, data[n, c, h - top, w - left, lane], tirx.const(0, dtype))

    whole = (batch, chunks, down * TILE + 2, across * TILE + 2, lanes)
    pad = te.compute(whole, padded, name="winograd_pad", attrs=_LEFT_ALONE)

    def row(n: Any, c: Any, y: Any, x: Any, i: Any, w: Any, lane: Any) -> Any:
        return _times(_INPUT, i, lambda k: pad[n, c, y * TILE + k, x * TILE + w, lane], dtype)

    patches = (batch, chunks, down, across, PATCH, PATCH, lanes)
    rows = te.compute(patches, row, name="winograd_rows", attrs=_LEFT_ALONE)

    def element(a: Any, c: Any, p: Any, lane: Any) -> Any:
        tile = (p // (down * across), c, p // across % down, p % across, a // PATCH)
        return _times(_INPUT, a % PATCH, lambda k: rows[(*tile, k, lane)], dtype)

    operands = (PATCH**2, chunks, batch * down * across, lanes)
    return te.compute(operands, element, name="winograd_input", attrs={"schedule_rule": "winograd_input"})


def _te_product(tiles: Any, kernel: Any) -> Any:
    """36 matrix products: (36, IC, P, bi) and (36, OC, IC, bi, bo) give (36, OC, P, bo)."""
    chunk, lane = (te.reduce_axis((0, size)) for size in kernel.shape[2:4])

    def element(a: Any, o: Any, p: Any, out: Any) -> Any:
        return te.sum(tiles[a, chunk, p, lane] * kernel[a, o, chunk, lane, out], axis=[chunk, lane])

    shape = (*kernel.shape[:2], tiles.shape[2], kernel.shape[-1])
    return te.compute(shape, element, name="winograd_product")


def _times(matrix: Sequence[Sequence[float]], at: Any, element: Callable[[int], Any], dtype: str) -> Any:
    """Row `at` of a matrix times a vector: once `at` is unrolled, only the terms that are not zero are left."""
    rows = [_sum(row, element, dtype) for row in matrix]
    found = rows.pop()
    for index in reversed(range(len(rows))):
        found = tirx.Select(at == index, rows[index], found)
    return found


def _sum(row: Sequence[float], element: Callable[[int], Any], dtype: str) -> Any:
    terms = [
        element(k) if factor == 1 else element(k) * tirx.const(factor, dtype) for k, factor in enumerate(row) if factor
    ]
    return sum(terms[1:], terms[0])
