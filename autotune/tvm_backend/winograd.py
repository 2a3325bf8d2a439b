"""Winograd's algorithm for 3x3 convolutions of channel-blocked tensors: a quarter of the multiplications.

F(4x4, 3x3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4.3: tiles of
6x6 of the input become 36 numbers each, which are multiplied with 36 transformed weights and summed over the channels,
36 matrix products in all, and give tiles of 4x4 of the output. Results are off by some 1e-5 of the largest, where a
direct sum is off by 1e-6. The products are tuned as any matrix product is; what comes before and after is scheduled
here, by two rules that MetaSchedule finds by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from autotune.tvm_backend.convolution import Array, Window, pack_weight
from autotune.tvm_backend.rewrite import float_dtype, static_shape

_TILE = 4  # of the output, both ways
_PATCH = _TILE + 2  # of the input
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
    tiles = batch * -(-height // _TILE) * -(-width // _TILE)
    reading = _WEIGHT_COST * vector
    direct = 9 * outputs * inputs * (batch * height * width + reading)
    between = _PATCH**2 * tiles * (inputs + outputs)
    fast = _PATCH**2 * outputs * inputs * (tiles + reading) + between * _TRANSFORM_COST
    return fast < direct and between * 4 <= _MOST_BYTES


def transform_weight(weight: Array, block_in: int, block_out: int) -> Array:
    """(O, I, 3, 3) as (36, OC, IC, bi, bo), transformed in float64."""
    rows = np.array(_WEIGHT)
    wide = np.einsum("ak,oikl,bl->oiab", rows, weight.astype(np.float64), rows)
    packed = pack_weight(wide, block_in, block_out)  # (OC, IC, 6, 6, bi, bo)
    outer, inner = packed.shape[:2]
    flat = np.transpose(packed, (2, 3, 0, 1, 4, 5)).reshape(_PATCH**2, outer, inner, block_in, block_out)
    return flat.astype(weight.dtype)


def te_winograd(data: Any, kernel: Any, window: Window) -> Any:
    """data (N, IC, H, W, bi) and a transformed kernel (36, OC, IC, bi, bo) give (N, OC, OH, OW, bo)."""
    height, width = window.size
    down, across = -(-height // _TILE), -(-width // _TILE)
    product = _te_product(_te_input(data, window, down, across), kernel)
    batch, outer, lanes, dtype = data.shape[0], kernel.shape[1], kernel.shape[-1], data.dtype

    def column(n: Any, o: Any, y: Any, x: Any, i: Any, b: Any, lane: Any) -> Any:
        at = (n * down + y) * across + x
        return _times(_OUTPUT, i, lambda k: product[k * _PATCH + b, o, at, lane], dtype)

    tiles = (batch, outer, down, across, _TILE, _PATCH, lanes)
    columns = te.compute(tiles, column, name="winograd_columns", attrs=_LEFT_ALONE)

    def element(n: Any, o: Any, h: Any, w: Any, lane: Any) -> Any:
        tile = (n, o, h // _TILE, w // _TILE, h % _TILE)
        return _times(_OUTPUT, w % _TILE, lambda k: columns[(*tile, k, lane)], dtype)

    results = (batch, outer, height, width, lanes)
    return te.compute(results, element, name="winograd_output", attrs={"schedule_rule": "winograd_output"})


def _te_input(data: Any, window: Window, down: int, across: int) -> Any:
    """(N, IC, H, W, bi) as (36, IC, N * down * across, bi)."""
    batch, chunks, height, width, lanes = data.shape
    (top, left), dtype = window.padding[:2], data.dtype

    def padded(n: Any, c: Any, h: Any, w: Any, lane: Any) -> Any:
        inside = tirx.all(h >= top, h < top + height, w >= left, w < left + width)
        return tirx.if_then_else(inside, data[n, c, h - top, w - left, lane], tirx.const(0, dtype))

    whole = (batch, chunks, down * _TILE + 2, across * _TILE + 2, lanes)
    pad = te.compute(whole, padded, name="winograd_pad", attrs=_LEFT_ALONE)

    def row(n: Any, c: Any, y: Any, x: Any, i: Any, w: Any, lane: Any) -> Any:
        return _times(_INPUT, i, lambda k: pad[n, c, y * _TILE + k, x * _TILE + w, lane], dtype)

    patches = (batch, chunks, down, across, _PATCH, _PATCH, lanes)
    rows = te.compute(patches, row, name="winograd_rows", attrs=_LEFT_ALONE)

    def element(a: Any, c: Any, p: Any, lane: Any) -> Any:
        tile = (p // (down * across), c, p // across % down, p % across, a // _PATCH)
        return _times(_INPUT, a % _PATCH, lambda k: rows[(*tile, k, lane)], dtype)

    operands = (_PATCH**2, chunks, batch * down * across, lanes)
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


def _schedule_input(schedule: Any, block: Any) -> list[Any]:
    """A row of tiles of some channels is a piece of work; its input, padded, and a tile's rows stay in the caches."""
    (rows,) = schedule.get_producers(block)
    (pad,) = schedule.get_producers(rows)
    across = schedule.get(schedule.get_loops(rows)[3]).extent
    at, chunk, tile, lane = schedule.get_loops(block)
    outer, inner = schedule.split(at, [_PATCH, _PATCH])
    line, x = schedule.split(tile, [None, across])
    schedule.reorder(chunk, line, x, outer, inner, lane)
    piece = schedule.fuse(chunk, line)
    schedule.parallel(piece)
    _unroll_and_vectorize(schedule, inner, lane)
    schedule.compute_at(rows, x)
    *_, i, w, lane = schedule.get_loops(rows)
    schedule.reorder(w, i, lane)
    _unroll_and_vectorize(schedule, i, lane)
    schedule.compute_at(pad, piece)
    schedule.vectorize(schedule.get_loops(pad)[-1])
    return [schedule]


def _schedule_output(schedule: Any, block: Any) -> list[Any]:
    """A row of tiles of some channels is a piece of work; a tile's columns stay in the caches.

    What is fused to the convolution is computed where its results are written.
    """
    _inline_consumers(schedule, block)
    (columns,) = schedule.get_producers(block)
    batch, chunk, height, width, lane = schedule.get_loops(block)
    y, h = schedule.split(height, [None, _TILE])
    x, w = schedule.split(width, [None, _TILE])
    schedule.reorder(batch, chunk, y, x, h, w, lane)
    schedule.parallel(schedule.fuse(batch, chunk, y))
    _unroll_and_vectorize(schedule, w, lane)
    schedule.compute_at(columns, x)
    *_, i, b, lane = schedule.get_loops(columns)
    schedule.reorder(b, i, lane)
    _unroll_and_vectorize(schedule, i, lane)
    return [schedule]


def _inline_consumers(schedule: Any, block: Any) -> None:
    """Elementwise consumers, one after the other, up to the first that is none; x * sigmoid(x) counts as one."""
    from tvm.s_tir import ScheduleError

    while consumers := schedule.get_consumers(block):
        inner = [item for item in consumers if schedule.get_consumers(item)]
        try:
            if len(consumers) == 1:
                schedule.reverse_compute_inline(consumers[0])
            elif inner:
                schedule.compute_inline(inner[0])
            else:
                return
        except ScheduleError:
            return


def _unroll_and_vectorize(schedule: Any, unrolled: Any, vectorized: Any) -> None:
    schedule.unroll(unrolled)
    schedule.vectorize(vectorized)


tvm.register_global_func("s_tir.meta_schedule.cpu.winograd_input", _schedule_input, override=True)
tvm.register_global_func("s_tir.meta_schedule.cpu.winograd_output", _schedule_output, override=True)
