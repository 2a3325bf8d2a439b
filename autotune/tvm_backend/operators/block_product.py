"""The kernel of products of floats with a matrix of few bits, which it dequantises as it reads it.

The elements of a column are quantised in blocks, each with a scale and a zero point. A product is computed
block by block:

    y = sum over blocks of scale * (sum of x * element - zero * sum of x)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import te, tirx

from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators.chunked_weights import filled, fits
from autotune.tvm_backend.programs import finished
from autotune.tvm_backend.types import PrimExpr, PrimFunc, TensorExpr

Array = npt.NDArray[Any]
_NIBBLE = 16
_MAX_SUMS = 8  # vectors of 16 floats that a tile keeps in registers
_MAX_COLUMNS = 4  # vectors of a tile


@dataclass(frozen=True)
class BlockMatrix:
    """A constant matrix (K, N) in blocks of rows.

    Attributes:
        integers: Its elements, less their zero points, int64.
        scale: Floats (blocks, N).
        block: Rows of a block; the last may be cut short.
    """

    integers: Array
    scale: Array
    block: int

    def in_blocks(self) -> Array:
        """Return the elements as (blocks, rows of a block, N), the last block filled up with zeros."""
        return filled(self.integers, 0, self.block).reshape(len(self.scale), self.block, -1)


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix as a kernel reads it: columns in chunks of 16.

    Attributes:
        elements: Bytes (N / 16, K, 16), signed; or unsigned (N / 16, K / 2, 16), with an even row in the lower half of
            a byte and the odd one after it in the upper half.
        scale: Floats (N / 16, blocks, 16).
        zero: Floats (N / 16, blocks, 16): what is subtracted from the elements; None for nothing.
        block: Rows of a block.
    """

    elements: Array
    scale: Array
    zero: Array | None
    block: int


def pack(matrix: BlockMatrix) -> PackedMatrix:
    """Pack a matrix for the kernel, in half bytes if its elements fit."""
    blocks = len(matrix.scale)
    values = filled(matrix.in_blocks(), 2, LANES)
    least = values.min(axis=1)
    greatest = values.max(axis=1)
    halved = matrix.block % 2 == 0 and int((greatest - least).max()) < _NIBBLE
    middle = _NIBBLE // 2
    if halved:
        zero = np.where((least >= -middle) & (greatest < middle), middle, -least)
    else:
        zero = np.zeros_like(least) if fits(values) else -128 - least
    elements = (values + zero[:, None]).reshape(blocks * matrix.block, -1, LANES).transpose(1, 0, 2)
    if halved:
        elements = elements[:, ::2] + _NIBBLE * elements[:, 1::2]
    across = [_chunks(item) for item in (filled(matrix.scale, 1, LANES), zero)]
    dtype = np.uint8 if halved else np.int8
    return PackedMatrix(
        np.ascontiguousarray(elements.astype(dtype)), across[0], across[1] if zero.any() else None, matrix.block
    )


def _chunks(values: Array) -> Array:
    """(blocks, N) as floats (N / 16, blocks, 16)."""
    blocks = len(values)
    return np.ascontiguousarray(values.reshape(blocks, -1, LANES).transpose(1, 0, 2).astype(np.float32))


def row_tile(rows: int) -> int:
    """Return how many rows are computed together: they share the work of dequantising."""
    whole = max(size for size in range(1, _MAX_SUMS + 1) if rows % size == 0)
    return whole if whole > _MAX_SUMS // 2 or rows <= _MAX_SUMS else _MAX_SUMS


def block_kernel(rows: int, packed: PackedMatrix, tile: int) -> PrimFunc:
    """Return the program of a product of floats (rows, K) with a packed matrix: floats (rows, N / 16, 16).

    Args:
        rows: Of the floats, a multiple of the tile.
        packed: The matrix.
        tile: Rows that are computed together.
    """
    chunks, blocks, _ = packed.scale.shape
    halves = 2 if packed.elements.dtype == np.uint8 else 1
    data = te.placeholder((rows, blocks * packed.block), "float32", "data")
    elements = te.placeholder(packed.elements.shape, str(packed.elements.dtype), "elements")
    scale = te.placeholder(packed.scale.shape, "float32", "scale")
    zeros = [] if packed.zero is None else [te.placeholder(packed.zero.shape, "float32", "zero")]
    products = _products(data, elements, blocks, halves)
    offsets = [_block_sums(data, blocks) for _ in zeros]
    block = te.reduce_axis((0, blocks))

    def element(row: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        value = products[row, chunk, block, lane]
        for zero, offset in zip(zeros, offsets, strict=True):
            value = value - zero[chunk, block, lane] * offset[row, block]
        return te.sum(value * scale[chunk, block, lane], axis=block)

    result = te.compute((rows, chunks, LANES), element, name="result")
    return _scheduled([data, elements, scale, *zeros, result], tile, has_offset=bool(zeros))


def _products(data: TensorExpr, elements: TensorExpr, blocks: int, halves: int) -> TensorExpr:
    """The sums of x * element of each block, (rows, N / 16, blocks, 16)."""
    size = int(elements.shape[1]) // blocks
    step = te.reduce_axis((0, size))
    half = te.reduce_axis((0, halves))

    def element(row: PrimExpr, chunk: PrimExpr, block: PrimExpr, lane: PrimExpr) -> PrimExpr:
        place = block * size + step
        byte = elements[chunk, place, lane].astype("int32")
        if halves == 2:
            byte = tirx.bitwise_and(tirx.shift_right(byte, half * 4), tirx.const(_NIBBLE - 1, "int32"))
        return te.sum(data[row, place * halves + half] * byte.astype("float32"), axis=[step, half])

    return te.compute((data.shape[0], elements.shape[0], blocks, LANES), element, name="products")


def _block_sums(data: TensorExpr, blocks: int) -> TensorExpr:
    size = int(data.shape[1]) // blocks
    step = te.reduce_axis((0, size))
    shape = (data.shape[0], blocks)
    return te.compute(shape, lambda row, block: te.sum(data[row, block * size + step], axis=step), name="block_sums")


def _scheduled(arguments: Sequence[TensorExpr], tile: int, *, has_offset: bool) -> PrimFunc:
    """Chunks of columns in parallel; the sums of a tile stay in registers for a block."""
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func(list(arguments))}))
    result = schedule.get_sblock("result")
    products = schedule.get_sblock("products")
    row, chunk, lane, block = schedule.get_loops(result)
    chunks = int(schedule.get(chunk).extent)
    most = min(max(_MAX_SUMS // tile, 1), _MAX_COLUMNS)
    columns = max(size for size in range(1, most + 1) if chunks % size == 0)
    outer_row, row = schedule.split(row, [None, tile])
    outer_chunk, chunk = schedule.split(chunk, [None, columns])
    schedule.reorder(outer_chunk, outer_row, block, row, chunk, lane)
    for loop in (row, chunk):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    schedule.parallel(outer_chunk)
    schedule.compute_at(products, block, preserve_unit_loops=True)
    *_, row, chunk, _, lane, step, half = schedule.get_loops(products)
    schedule.reorder(step, half, chunk, row, lane)
    for loop in (half, chunk, row):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    init = schedule.decompose_reduction(products, step)
    schedule.set_scope(init, 0, "local")
    for loop in schedule.get_loops(init)[-4:-1]:
        schedule.unroll(loop)
    schedule.decompose_reduction(result, block)
    if has_offset:
        schedule.parallel(schedule.get_loops(schedule.get_sblock("block_sums"))[0])
    return finished(schedule.mod["main"])
