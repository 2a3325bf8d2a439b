"""Products of floats with a constant matrix of few bits, which stays packed.

The elements of a column are quantised in blocks, each with a scale and a zero point:
number = (element - zero) * scale. `operators/few_bit_product.py` has the product, which is a tuning task.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.intrinsics.few_bit_dots import WORD
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators.activations import Blocked, blocks_kernel
from autotune.tvm_backend.operators.element_types import LEVELS
from autotune.tvm_backend.operators.few_bit_product import KERNEL, PackedForm, PackedRows, pack, packed_product
from autotune.tvm_backend.packing.chunked_weights import filled
from autotune.tvm_backend.packing.integer_graph import IntegerGraph
from autotune.tvm_backend.types import Call, Expr

Array = npt.NDArray[Any]
_NIBBLE = 16
# Rows: a kernel has the loop over a block unrolled, and keeps the elements of some blocks unpacked.
_MAX_BLOCK = 32
_MAX_BLOCK_IN_BYTES = 64
_MAX_TILE = 8  # rows of activations that share unpacked weights


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


def block_matrix(graph: IntegerGraph, expr: Expr) -> BlockMatrix | None:
    """Return the matrix that an expression makes of a constant of 8-bit integers; None for any other expression."""
    value = graph.value(expr)
    if op_name(value) == "relax.permute_dims":
        value = graph.value(value.args[0])
        return _in_bytes(_by_rows(graph, value))
    constant = graph.constant(expr)
    if constant is None or constant.integers.ndim != 2 or constant.axis == 0:
        return None
    rows, columns = constant.integers.shape
    return _in_bytes(BlockMatrix(constant.integers, np.broadcast_to(constant.scale, (1, columns)), rows))


def _in_bytes(matrix: BlockMatrix | None) -> BlockMatrix | None:
    """Return a matrix if the elements of each block fit a byte around some zero point; None otherwise."""
    if matrix is None:
        return None
    values = matrix.in_blocks()
    return matrix if int((values.max(axis=1) - values.min(axis=1)).max()) < LEVELS else None


def _by_rows(graph: IntegerGraph, value: Expr) -> BlockMatrix | None:
    """The transposed matrix of a constant (N, K), or of its blocks (N * blocks, block), one below the other."""
    cut = static_shape(value)
    if len(cut) != 2:
        return None
    columns, rows = cut
    if op_name(value) == "relax.strided_slice":
        if not _cuts_ends_off(value, columns):
            return None
        value = graph.value(value.args[0])
    reshaped = op_name(value) == "relax.reshape"
    constant = graph.constant(value.args[0] if reshaped else value) if isinstance(value, relax.Call) else None
    if constant is None or constant.integers.ndim != 2 or constant.axis > 0:
        return None
    count, block = constant.integers.shape
    if count % columns or not (reshaped or count == columns):
        return None
    blocks = count // columns
    scale = np.broadcast_to(constant.scale.reshape(-1), (count,)).reshape(columns, blocks)
    used = -(-rows // block)
    return BlockMatrix(constant.integers.reshape(columns, -1)[:, :rows].T, scale.T[:used], block)


def _cuts_ends_off(value: Call, columns: int) -> bool:
    """Return whether a slice leaves out the ends of rows, which blocks were filled up with, and nothing else."""
    numbers = [int(item.value) for item in value.args[2]]
    strides = [int(item.value) for item in value.args[4]] if len(value.args) > 4 else []
    return static_shape(value.args[0])[0] == columns and not any(numbers) and set(strides) <= {1}


def block_product(graph: IntegerGraph, value: Expr, matrix: BlockMatrix) -> Expr:
    """Compute a product with a matrix that stays packed."""
    shape = static_shape(value)
    rows = prod(shape[:-1])
    packed = packed_rows(matrix, in_bytes=graph.activations == "int8")
    tiled = rows + -rows % _row_tile(rows)
    flat = _filled_rows(graph, value.args[0], matrix, (rows, tiled), packed.columns)
    program = packed_product(packed.form, (tiled, packed.rows, packed.columns), graph.target)
    constants = [relax.const(item, str(item.dtype)) for item in packed.arrays]
    operands = [*_activations(graph, flat, packed.form), *constants]
    wide = graph.kernel(program, KERNEL, operands, (tiled, packed.rows), "float32")
    if (tiled, packed.rows) != (rows, shape[-1]):
        wide = graph.emit(relax.op.strided_slice(wide, axes=[0, 1], begin=[0, 0], end=[rows, shape[-1]]))
    return graph.emit(relax.op.reshape(wide, shape))


def packed_rows(matrix: BlockMatrix, *, in_bytes: bool) -> PackedRows:
    """Pack a matrix, in half bytes if its elements fit.

    Long blocks are cut into several with the same scale. Blocks that are no multiple of a vector are filled up; what is
    multiplied there has to be zero.

    Args:
        in_bytes: Whether it is multiplied by activations in bytes.
    """
    values = matrix.in_blocks()
    least = values.min(axis=1)
    greatest = values.max(axis=1)
    halved = int((greatest - least).max()) < _NIBBLE
    middle = (_NIBBLE if halved else LEVELS) // 2
    zero = np.where((least >= -middle) & (greatest < middle), middle, -least)
    size = min(matrix.block + -matrix.block % LANES, _MAX_BLOCK_IN_BYTES if in_bytes else _MAX_BLOCK)
    codes = filled((values + zero[:, None]).astype(np.uint8), 1, size)
    cuts = codes.shape[1] // size
    scale, zero = (np.repeat(item.T, cuts, axis=1) for item in (matrix.scale, zero))
    shifted = bool((zero != middle).any())
    exact = not shifted and bool((scale.astype(np.float16) == scale).all())
    form = PackedForm(
        bits=4 if halved else 8,
        block=size,
        scales="float16" if exact else "float32",
        zero=None if shifted else middle,
        word=WORD if in_bytes else 1,
    )
    columns = codes.reshape(-1, codes.shape[2]).T
    whole = [filled(item, 0, LANES) for item in (columns, scale, -scale * zero)]
    return pack(whole[0], whole[1], whole[2] if shifted else None, form)


def _row_tile(rows: int) -> int:
    """How many rows are computed together: a divisor of their number, if that is not small."""
    whole = max(size for size in range(1, _MAX_TILE + 1) if rows % size == 0)
    return whole if whole > _MAX_TILE // 2 or rows <= _MAX_TILE else _MAX_TILE


def _filled_rows(graph: IntegerGraph, expr: Expr, matrix: BlockMatrix, rows: tuple[int, int], columns: int) -> Expr:
    """Activations as (rows, columns), with zeros where blocks of the matrix, or the number of rows, were filled up."""
    given, tiled = rows
    inner = static_shape(expr)[-1]
    blocks = len(matrix.scale)
    flat = graph.emit(relax.op.reshape(graph.leaf(expr), (given, inner)))
    if (more := blocks * matrix.block - inner) or tiled != given:
        flat = graph.emit(relax.op.nn.pad(flat, [0, tiled - given, 0, more]))
    if columns == blocks * matrix.block:
        return flat
    cut = graph.emit(relax.op.reshape(flat, (tiled, blocks, matrix.block)))
    wide = graph.emit(relax.op.nn.pad(cut, [0, 0, 0, 0, 0, columns // blocks - matrix.block]))
    return graph.emit(relax.op.reshape(wide, (tiled, columns)))


def _activations(graph: IntegerGraph, rows: Expr, form: PackedForm) -> list[Expr]:
    """What a product reads of activations: floats and the sums of blocks, or bytes, the scales of blocks and sums."""
    count, columns = static_shape(rows)
    blocked = Blocked(count, columns, form.block, form.word == WORD)
    function = graph.builder.add_func(blocks_kernel(blocked), "blocks")
    types = [relax.TensorType(shape, dtype) for shape, dtype in blocked.types]
    made = graph.emit(relax.call_tir(function, [rows], out_ty=types))
    return [graph.emit(relax.TupleGetItem(made, index)) for index in range(len(types))]
