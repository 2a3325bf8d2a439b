"""Pack the constant weights of matrix products, so that a kernel reads them one after the other."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te

from autotune.tvm_backend.graph.convolution import Array
from autotune.tvm_backend.graph.rewrite import (
    Expr,
    PlainRewriter,
    float_dtype,
    is_tensor_constant,
    op_name,
    rewrite_and_clean,
    static_shape,
)

_BLOCKS = (16, 8)  # the elements of a vector register, or twice that; the first that divides the columns


def pack_products(mod: Any) -> Any:
    """Rewrite `main` so that products with constant matrices read them packed.

    A matrix (K, N) packed with a block b is (N / b, K, b): column n is in chunk n // b, lane n % b. Where the rows of a
    plain matrix are far apart, every row that a tile reads is a page and a cache line of its own.

    Args:
        mod: A module before LegalizeOps, its constants folded; parameters of layers are relax constants.
    """
    return rewrite_and_clean(mod, _WeightPacker)


class _WeightPacker(PlainRewriter):
    """Packs each matrix once: the steps of a recurrent network share their weights."""

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._weights: dict[Any, Expr] = {}

    def replace(self, value: Expr) -> Expr | None:
        return self._packed(value) if _packable(value) else None

    def _packed(self, call: Any) -> Expr:
        data, matrix = call.args
        if matrix not in self._weights:
            self._weights[matrix] = _packed_weight(matrix)
        product = self.builder.call_te(
            te_product, self.leaf(data), self._weights[matrix], primfunc_name_hint="packed_matmul"
        )
        return relax.op.reshape(self.builder.emit(product), static_shape(call))


def _packed_weight(matrix: Expr) -> Expr:
    values = matrix.value.numpy()
    return relax.const(pack_columns(values, _block(values.shape[1])), str(matrix.ty.dtype))


def _block(columns: int) -> int:
    """The block for so many columns; 0 where none divides them."""
    return next((block for block in _BLOCKS if columns % block == 0), 0)


def _packable(value: Expr) -> bool:
    """Whether a value is a product of a floating-point tensor with a constant matrix that fills whole vectors."""
    if op_name(value) != "relax.matmul" or not is_tensor_constant(value.args[1]):
        return False
    data, weight = map(static_shape, value.args)
    dtypes = {float_dtype(item) for item in (*value.args, value)}
    same_type = len(dtypes) == 1 and None not in dtypes
    return same_type and len(data) >= 2 and len(weight) == 2 and prod(data) > 0 and _block(weight[1]) > 0


def pack_columns(matrix: Array, block: int) -> Array:
    """(K, N) as (N / b, K, b)."""
    inner, columns = matrix.shape
    return np.ascontiguousarray(matrix.reshape(inner, columns // block, block).transpose(1, 0, 2))


def te_product(data: Any, weight: Any) -> Any:
    """data (..., K) and packed weight (N / b, K, b) give (..., N / b, b), which is (..., N) in memory."""
    chunks, inner, block = weight.shape
    k = te.reduce_axis((0, inner), "k")

    def element(*index: Any) -> Any:
        *row, chunk, lane = index
        return te.sum(data[(*row, k)] * weight[chunk, k, lane], axis=k)

    return te.compute((*data.shape[:-1], chunks, block), element, name="packed_matmul", tag="packed_matmul")
