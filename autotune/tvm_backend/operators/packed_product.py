"""A product with a constant matrix that is packed in blocks of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import te

from autotune.tvm_backend.types import PrimExpr, TensorExpr

PACKED_PRODUCT = "packed_matmul"  # the name of its block, and of its kernel


def pack_columns(matrix: npt.NDArray[Any], block: int) -> npt.NDArray[Any]:
    """(K, N) as (ceil(N / b), K, b), with zeros where the last chunk is not full."""
    inner, columns = matrix.shape
    missing = -columns % block
    filled = np.pad(matrix, ((0, 0), (0, missing))) if missing else matrix  # np.pad copies in any case
    return filled.reshape(inner, -1, block).transpose(1, 0, 2)


def te_product(data: TensorExpr, weight: TensorExpr) -> TensorExpr:
    """data (..., K) and packed weight (C, K, b) give (..., C, b), which is (..., C * b) in memory."""
    chunks, inner, block = weight.shape
    k = te.reduce_axis((0, inner), "k")

    def element(*index: PrimExpr) -> PrimExpr:
        *row, chunk, lane = index
        return te.sum(data[(*row, k)] * weight[chunk, k, lane], axis=k)

    return te.compute((*data.shape[:-1], chunks, block), element, name=PACKED_PRODUCT, tag=PACKED_PRODUCT)
