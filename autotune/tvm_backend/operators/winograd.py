"""Compute 3x3 convolutions of channel-blocked tensors with Winograd's algorithm: a quarter of the multiplications.

This is F(4x4, 3x3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4.3:

1. Each 6x6 tile of the input is transformed to 36 numbers. The weights were transformed to 36 numbers when compiling.
2. For each of the 36 positions, a matrix product sums over the input channels.
3. The 36 products of a tile are transformed to a 4x4 tile of the output.

The error is about 1e-5 of the largest value; that of a direct convolution is about 1e-6. F(2x2, 3x3), section 4.1, has
4x4 tiles of the input and 16 numbers: less than half of the multiplications, and an error of about 1e-6. The matrix
products are tuned as any other. The transforms are scheduled by two rules of `search/schedule_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isqrt

import numpy as np
from tvm import te, tirx

from autotune.tvm_backend.expressions import float_dtype, static_shape
from autotune.tvm_backend.operators.convolution import NO_SCHEDULE_RULE, Array, Window, pack_weight, te_pad
from autotune.tvm_backend.types import Call, PrimExpr, TensorExpr

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class _Transforms:
    """The matrices that transform the input, the weights and the output of a tile."""

    input: Matrix
    weight: Matrix
    output: Matrix


# By the rows and columns of a tile of the output. A tile depends on two rows and columns more of the input.
_TRANSFORMS = {
    2: _Transforms(
        input=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        weight=((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        output=((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: _Transforms(
        input=(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        weight=(
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        output=(
            (1, 1, 1, 1, 1, 0),
            (0, 1, -1, 2, -2, 0),
            (0, 1, 1, 4, 4, 0),
            (0, 1, -1, 8, -8, 1),
        ),
    ),
}
TILE = 4  # of the algorithm that the rules choose
_MORE = 2  # rows and columns of the input, for a kernel of three
# Costs in multiply-adds, as they were measured. The second one is for each element of a
# vector register, because wider registers do not read memory faster.
_TRANSFORM_COST = 40  # of transforming a number
_WEIGHT_COST = 1.4  # of reading a weight from memory, as in a whole model
_MAX_BYTES = 2**28  # of the transformed input and output, which have 2.25 times as many elements as before


def winograd_refusal(call: Call, tile: int = TILE) -> str:
    """Return why the algorithm cannot compute a convolution; empty if it can.

    Args:
        call: The Relax call of the convolution.
        tile: Rows and columns of a tile of the output: 2 or 4.
    """
    attrs = call.attrs
    ones = [int(item) for item in (*attrs.strides, *attrs.dilation, attrs.groups)]
    if static_shape(call.args[1])[2:] != (3, 3) or set(ones) != {1}:
        return "winograd is for 3x3 convolutions without strides, dilation and groups"
    if float_dtype(call) != "float32":
        return "winograd is for float32"
    between = 4 * (tile + _MORE) ** 2 * _tiles(call, tile) * sum(static_shape(call.args[1])[:2])
    return "winograd would need more than 256 MiB between its transforms" if between > _MAX_BYTES else ""


def winograd_pays(call: Call, vector: int) -> bool:
    """Return whether the algorithm can compute a convolution and is expected to be faster than a direct one.

    Args:
        call: The Relax call of the convolution.
        vector: How many elements a vector register has.
    """
    if winograd_refusal(call):
        return False
    (outputs, inputs) = static_shape(call.args[1])[:2]
    (batch, _, height, width) = static_shape(call)
    reading = _WEIGHT_COST * vector
    direct = 9 * outputs * inputs * (batch * height * width + reading)
    positions = (TILE + _MORE) ** 2
    tiles = _tiles(call, TILE)
    between = positions * tiles * (inputs + outputs)
    fast = positions * outputs * inputs * (tiles + reading) + between * _TRANSFORM_COST
    return fast < direct


def _tiles(call: Call, tile: int) -> int:
    (batch, _, height, width) = static_shape(call)
    return batch * -(-height // tile) * -(-width // tile)


def transform_weight(weight: Array, block_in: int, block_out: int, tile: int = TILE) -> Array:
    """Transform and pack the weights of a convolution. The transform is computed in float64.

    Args:
        weight: Of shape (O, I, 3, 3).
        block_in: Input channels in a chunk, bi.
        block_out: Output channels in a chunk, bo.
        tile: Rows and columns of a tile of the output, t.

    Returns:
        The weights of shape ((t + 2)^2, ceil(O / bo), ceil(I / bi), bi, bo).
    """
    rows = np.array(_TRANSFORMS[tile].weight)
    wide = _transformed(rows, _transformed(rows, weight.astype(np.float64), 2), 3)
    packed = pack_weight(wide, block_in, block_out)  # (OC, IC, t + 2, t + 2, bi, bo)
    outer, inner = packed.shape[:2]
    flat = np.transpose(packed, (2, 3, 0, 1, 4, 5)).reshape(len(rows) ** 2, outer, inner, block_in, block_out)
    return flat.astype(weight.dtype)


def _transformed(matrix: Array, values: Array, axis: int) -> Array:
    """Multiply a small matrix with an axis of an array, in an order of sums that no library and no CPU changes."""
    slices = np.moveaxis(values, axis, 0)
    terms = ([factor * part for factor, part in zip(row, slices, strict=True) if factor] for row in matrix)
    return np.stack([reduce(np.add, row) for row in terms], axis)


def te_winograd(data: TensorExpr, kernel: TensorExpr, geometry: Window) -> TensorExpr:
    """Express a convolution of packed tensors with Winograd's algorithm.

    Args:
        data: The input of shape (N, IC, H, W, bi).
        kernel: What `transform_weight` returned, of shape ((t + 2)^2, OC, IC, bi, bo).

    Returns:
        The output of shape (N, OC, OH, OW, bo).
    """
    height, width = geometry.size
    patch = isqrt(int(kernel.shape[0]))
    tile = patch - _MORE
    down = -(-height // tile)
    across = -(-width // tile)
    product = _te_product(_te_input(data, geometry, down, across, tile), kernel)
    matrix = _TRANSFORMS[tile].output
    batch = data.shape[0]
    outer = kernel.shape[1]
    lanes = kernel.shape[-1]
    dtype = data.dtype

    def column(
        n: PrimExpr, o: PrimExpr, y: PrimExpr, x: PrimExpr, i: PrimExpr, b: PrimExpr, lane: PrimExpr
    ) -> PrimExpr:
        pixel = (n * down + y) * across + x
        return _times(matrix, i, lambda k: product[k * patch + b, o, pixel, lane], dtype)

    tiles = (batch, outer, down, across, tile, patch, lanes)
    columns = te.compute(tiles, column, name="winograd_columns", attrs=NO_SCHEDULE_RULE)

    def element(n: PrimExpr, o: PrimExpr, h: PrimExpr, w: PrimExpr, lane: PrimExpr) -> PrimExpr:
        row = (n, o, h // tile, w // tile, h % tile)
        return _times(matrix, w % tile, lambda k: columns[(*row, k, lane)], dtype)

    results = (batch, outer, height, width, lanes)
    return te.compute(results, element, name="winograd_output", attrs={"schedule_rule": "winograd_output"})


def _te_input(data: TensorExpr, geometry: Window, down: int, across: int, tile: int) -> TensorExpr:
    """Transform an input (N, IC, H, W, bi) to ((t + 2)^2, IC, N * down * across, bi)."""
    batch, chunks, *_, lanes = data.shape
    dtype = data.dtype
    patch = tile + _MORE
    matrix = _TRANSFORMS[tile].input
    size = (down * tile + _MORE, across * tile + _MORE)
    pad = te_pad(data, geometry.padding[:2], size, name="winograd_pad")

    def row(n: PrimExpr, c: PrimExpr, y: PrimExpr, x: PrimExpr, i: PrimExpr, w: PrimExpr, lane: PrimExpr) -> PrimExpr:
        return _times(matrix, i, lambda k: pad[n, c, y * tile + k, x * tile + w, lane], dtype)

    patches = (batch, chunks, down, across, patch, patch, lanes)
    rows = te.compute(patches, row, name="winograd_rows", attrs=NO_SCHEDULE_RULE)

    def element(a: PrimExpr, c: PrimExpr, p: PrimExpr, lane: PrimExpr) -> PrimExpr:
        line = (p // (down * across), c, p // across % down, p % across, a // patch)
        return _times(matrix, a % patch, lambda k: rows[(*line, k, lane)], dtype)

    operands = (patch**2, chunks, batch * down * across, lanes)
    return te.compute(operands, element, name="winograd_input", attrs={"schedule_rule": "winograd_input"})


def _te_product(tiles: TensorExpr, kernel: TensorExpr) -> TensorExpr:
    """Multiply tiles (q, IC, P, bi) with weights (q, OC, IC, bi, bo): q matrix products of shape (OC, P, bo)."""
    chunk, lane = (te.reduce_axis((0, size)) for size in kernel.shape[2:4])

    def element(a: PrimExpr, o: PrimExpr, p: PrimExpr, out: PrimExpr) -> PrimExpr:
        return te.sum(tiles[a, chunk, p, lane] * kernel[a, o, chunk, lane, out], axis=[chunk, lane])

    shape = (*kernel.shape[:2], tiles.shape[2], kernel.shape[-1])
    return te.compute(shape, element, name="winograd_product")


def _times(matrix: Matrix, wanted: PrimExpr, element: Callable[[int], PrimExpr], dtype: str) -> PrimExpr:
    """Multiply row `wanted` of a matrix with a vector. When `wanted` is unrolled, only the non-zero terms remain."""
    rows = [_sum(row, element, dtype) for row in matrix]
    selected = rows.pop()
    for index in reversed(range(len(rows))):
        selected = tirx.Select(wanted == index, rows[index], selected)
    return selected


def _sum(row: Sequence[float], element: Callable[[int], PrimExpr], dtype: str) -> PrimExpr:
    terms = [
        element(k) if factor == 1 else element(k) * tirx.const(factor, dtype) for k, factor in enumerate(row) if factor
    ]
    return sum(terms[1:], terms[0])
