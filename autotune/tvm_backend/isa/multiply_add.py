"""Steps of products that instruction sets share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.tvm_backend.isa.values import WORD, Load
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


def bfloat16_dot(function: str, v: Vectors, sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    """Add products of bfloat16 by one of the `LlvmFunctions` of a set."""
    data = v.reinterpret(f"uint16x{2 * lanes}", v.repeated("uint32", load(0, "uint16x2"), lanes))
    return v.function(f"float32x{lanes}", function, sums, data, weights)


def repeated_bytes(v: Vectors, load: Load, lanes: int) -> PrimExpr:
    """Return four bytes of the data, repeated to fill a vector."""
    return v.reinterpret(f"int8x{WORD * lanes}", v.repeated("int32", load(0, "uint8x4"), lanes))
