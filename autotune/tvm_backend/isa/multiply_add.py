"""Steps of products that instruction sets share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.tvm_backend.isa.values import Load
from autotune.tvm_backend.types import PrimExpr

if TYPE_CHECKING:
    from autotune.tvm_backend.isa.vectors import Vectors


def multiply_add(v: Vectors, sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    """Add products of bfloat16 in float32, those of the lower and of the upper halves of 32 bits apart.

    A half is widened by zeros behind it.
    """
    for half in (v.lower_half, v.upper_half):
        data = v.repeated("uint32", load(0, "uint16x2"), lanes)
        sums = sums + half(data, lanes) * half(v.reinterpret(f"uint32x{lanes}", weights), lanes)
    return sums
