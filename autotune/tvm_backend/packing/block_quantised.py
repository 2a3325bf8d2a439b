"""Products of floats with a constant matrix of few bits: the matrix stays packed, and the kernel dequantises it.

The elements of a column are quantised in blocks, each with a scale and a zero point:
number = (element - zero) * scale. A product is computed block by block:

    y = sum over blocks of scale * (sum of x * element - zero * sum of x)
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators.block_product import BlockMatrix, block_kernel, pack, row_tile
from autotune.tvm_backend.operators.element_types import LEVELS
from autotune.tvm_backend.packing.integer_graph import IntegerGraph
from autotune.tvm_backend.types import Call, Expr

Array = npt.NDArray[Any]


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
    packed = pack(matrix)
    chunks, blocks, _ = packed.scale.shape
    rows = prod(shape[:-1])
    inner = static_shape(value.args[0])[-1]
    tile = row_tile(rows)
    more = -rows % tile, blocks * packed.block - inner
    flat = graph.emit(relax.op.reshape(graph.leaf(value.args[0]), (rows, inner)))
    if any(more):
        flat = graph.emit(relax.op.nn.pad(flat, [0, more[0], 0, more[1]]))
    constants = [packed.elements, packed.scale, *([] if packed.zero is None else [packed.zero])]
    operands = [flat, *(relax.const(item, str(item.dtype)) for item in constants)]
    program = block_kernel(rows + more[0], packed, tile)
    result = graph.kernel(program, "block_matmul", operands, (rows + more[0], chunks, LANES), "float32")
    wide = graph.emit(relax.op.reshape(result, (rows + more[0], chunks * LANES)))
    if more[0] or chunks * LANES != shape[-1]:
        wide = graph.emit(relax.op.strided_slice(wide, axes=[0, 1], begin=[0, 0], end=[rows, shape[-1]]))
    return graph.emit(relax.op.reshape(wide, shape))
