"""Columns of small local squares are taken by shuffles of the rows.

A schedule writes a square of vectors to a local array row by row, and reads its columns. LLVM makes a chain of single
elements of such a column. The steps that transpose the square are the same for all its columns, so that LLVM computes
each once, in registers.
"""

from __future__ import annotations

from math import prod

import tvm
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.operators.permuted_rows import transposed
from autotune.tvm_backend.types import PrimExpr, PrimFunc

_SIDES = (8, 16)


def transpose_in_registers(function: PrimFunc) -> PrimFunc:
    """Return a lowered program in which the columns of local squares are computed from their rows."""
    body = tvm_ffi.structural_map(function.body, ((tvm.ir.TensorLoad, _column),))
    return function if body.same_as(function.body) else function.with_body(body)


def _column(load: PrimExpr) -> PrimExpr:
    """What a load of a column of a local square is; any other load itself."""
    square = load.source
    if len(load.indices) != 1 or not isinstance(load.indices[0], tirx.Ramp) or square.scope() != "local":
        return load
    (column,) = load.indices
    side = int(column.lanes)
    is_column = isinstance(column.base, tirx.IntImm) and int(column.base) < side == int(column.stride)
    if side not in _SIDES or not is_column or prod(map(int, square.shape)) != side * side:
        return load
    first = tirx.const(0, column.base.ty.dtype)
    rows = [square.vload([tirx.Ramp(first + side * row, tirx.const(1, first.ty.dtype), side)]) for row in range(side)]
    return transposed(rows)[int(column.base)]
