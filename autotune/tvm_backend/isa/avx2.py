"""AVX2, AVX and what came with them: vectors of 32 bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.tvm_backend.isa.multiply_add import multiply_add, repeated_bytes
from autotune.tvm_backend.isa.values import Dot, Feature, InstructionSet, Load, Registers
from autotune.tvm_backend.isa.x86 import ARCHITECTURE
from autotune.tvm_backend.types import PrimExpr

if TYPE_CHECKING:
    from autotune.tvm_backend.isa.vectors import Vectors


def _pmaddubsw(v: Vectors, sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    wide = f"int16x{2 * lanes}"
    pairs = v.intrinsic(wide, "llvm.x86.avx2.pmadd.ub.sw", repeated_bytes(v, load, lanes), weights)
    return sums + v.intrinsic(f"int32x{lanes}", "llvm.x86.avx2.pmadd.wd", pairs, v.all(1, "int16", 2 * lanes))


def _pmaddwd(v: Vectors, sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    """Even and odd weights apart, each widened to 16 bits: no sum of two products overflows 32 bits."""
    wide = f"int16x{2 * lanes}"
    eight = v.all(8, "int16", 2 * lanes)
    signed = v.reinterpret(wide, weights)
    factors = v.shift_right(v.shift_left(signed, eight), eight), v.shift_right(signed, eight)
    for first, factor in zip((0, 2), factors, strict=True):
        words = v.reinterpret(wide, v.repeated("int32", load(first, "int16x2"), lanes))
        sums = sums + v.intrinsic(f"int32x{lanes}", "llvm.x86.avx2.pmadd.wd", words, factor)
    return sums


AVX2 = InstructionSet(
    architecture=ARCHITECTURE.name,
    features=(
        Feature("avx", "avx"),
        Feature("avx2", "avx2"),
        Feature("fma", "fma"),
        Feature("f16c", "f16c"),
        Feature("bmi2", "bmi2"),
    ),
    registers=Registers(8, 16, "avx"),
    dots=(
        Dot("autotune_pmaddubsw_256", 8, ("avx2",), 16, _pmaddubsw, narrow=True, rate=2.0),
        Dot("autotune_pmaddwd_words_256", 8, ("avx2",), 16, _pmaddwd, words=True, rate=2.0),
        Dot("autotune_bf16_multiply_add", 16, ("avx2",), 6, multiply_add, "bfloat16", rate=1.0),
    ),
)
