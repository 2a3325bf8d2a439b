"""Read rows: in place of a product of a one-hot encoding with a constant matrix, and without a gather of known ones.

Exporters write an embedding as a product: compare each index with 0, 1, 2, ..., convert the answers to numbers, and
multiply them with the table. They take queries, keys and values apart by a gather of one constant index each, which is
fused with nothing. A slice is.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import float_dtype, is_tensor_constant, op_name, static_shape, values_of
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.types import Expr, IRModule


def read_rows(mod: IRModule) -> IRModule:
    """Rewrite `main` so that products with one-hot encodings become gathers. The results are the same, bit for bit.

    Args:
        mod: A module before LegalizeOps, its constants folded.
    """
    return rewrite_and_clean(mod, _RowReader)


def slice_rows(mod: IRModule) -> IRModule:
    """Rewrite `main` so that gathers whose indices are constants that count up are slices.

    Args:
        mod: A module before LegalizeOps.
    """
    return rewrite_and_clean(mod, _RowSlicer)


class _RowSlicer(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) != "relax.take" or not is_tensor_constant(value.args[1]) or value.attrs.axis is None:
            return None
        data, indices = value.args
        shape = static_shape(data)
        result = static_shape(value)
        if not isinstance(data, relax.Var) or not shape or not all(shape) or (not result and len(shape) > 1):
            return None
        axis = int(value.attrs.axis) % len(shape)
        rows = values_of(indices).astype(np.int64).ravel()
        inside = rows.size and rows[0] >= 0 and rows[-1] < shape[axis]
        if not inside or (np.diff(rows) != 1).any():
            return None
        first = int(rows[0])
        cut = relax.op.strided_slice(self.leaf(data), axes=[axis], begin=[first], end=[first + rows.size])
        return relax.op.reshape(self.emit(cut), result)


class _RowReader(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        return self._rows(value) if op_name(value) == "relax.matmul" else None

    def _rows(self, product: Expr) -> Expr | None:
        """A gather in place of a product; None if it is no product of a one-hot encoding with a finite matrix."""
        encoded, matrix = product.args
        if not is_tensor_constant(matrix) or len(static_shape(matrix)) != 2 or float_dtype(product) is None:
            return None
        indices = self._indices(encoded, static_shape(matrix)[0])
        if indices is None:  # before the table, which may be large, is copied
            return None
        table = values_of(matrix)
        if not np.isfinite(table).all():
            return None
        emit = self.builder.emit
        op = relax.op
        dtype = str(indices.ty.dtype)
        flat = emit(op.reshape(self.leaf(indices), static_shape(product)[:-1]))
        if np.iinfo(dtype).max < len(table):
            dtype = "int32"
            flat = emit(op.astype(flat, dtype))
        last = relax.const(len(table), dtype)
        inside = emit(op.logical_and(emit(op.greater_equal(flat, relax.const(0, dtype))), emit(op.less(flat, last))))
        # An index that no column stands for reads a row of zeros, which is its product too.
        padded = relax.const(np.pad(table, ((0, 1), (0, 0))), str(matrix.ty.dtype))
        return op.take(padded, emit(op.where(inside, flat, last)), axis=0)

    def _indices(self, encoded: Expr, depth: int) -> Expr | None:
        """The indices that a variable is the one-hot encoding of, with a last dimension of 1; None if it is none."""
        equal = self._operand(self.values.get(encoded), "relax.astype")
        if op_name(equal) != "relax.equal" or static_shape(equal)[-1:] != (depth,):
            return None
        for indices, numbers in (equal.args, reversed(equal.args)):
            if is_tensor_constant(numbers) and isinstance(indices, relax.Var):
                counted = np.array_equal(values_of(numbers).ravel(), np.arange(depth))
                integers = "int" in str(indices.ty.dtype)
                if counted and integers and static_shape(indices) == (*static_shape(equal)[:-1], 1):
                    return indices
        return None

    def _operand(self, value: Expr, name: str) -> Expr:
        return self.values.get(value.args[0]) if op_name(value) == name else None
