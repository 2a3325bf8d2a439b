"""AVX-512 with VNNI, VBMI and BF16: vectors of 64 bytes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from autotune.tvm_backend.isa.multiply_add import bfloat16_dot, multiply_add, repeated_bytes
from autotune.tvm_backend.isa.values import (
    LANES,
    WORD,
    ByteTable,
    Depthwise,
    Dot,
    Feature,
    InstructionSet,
    LlvmFunctions,
    Load,
    Registers,
)
from autotune.tvm_backend.isa.x86 import ARCHITECTURE
from autotune.tvm_backend.types import PrimExpr

if TYPE_CHECKING:
    from autotune.tvm_backend.isa.vectors import Vectors

_BYTES = f"int8x{WORD * LANES}"
_DOT = "autotune_dpbf16ps"
_ROUND = "autotune_round_bf16"
# LLVM's intrinsics take bfloat16, and TVM has no type for it.
_BFLOAT16 = LlvmFunctions(
    "avx512bf16",
    (_DOT, _ROUND),
    f"""
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
define <16 x i16> @{_ROUND}(<16 x float> %numbers) alwaysinline {{
  %a = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %numbers)
  %b = bitcast <16 x bfloat> %a to <16 x i16>
  ret <16 x i16> %b
}}
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @{_DOT}(<16 x float> %sums, <32 x i16> %data, <32 x i16> %weights) alwaysinline {{
  %a = bitcast <32 x i16> %data to <32 x bfloat>
  %b = bitcast <32 x i16> %weights to <32 x bfloat>
  %c = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %c
}}
""",
    rounding=_ROUND,
)


def vnni(v: Vectors, sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    """Add the products of four bytes of the data with those of each lane."""
    return _vpdpbusd(v, sums, repeated_bytes(v, load, lanes), weights, lanes)


def _vpdpbusd(v: Vectors, sums: PrimExpr, data: PrimExpr, weights: PrimExpr, lanes: int) -> PrimExpr:
    return v.intrinsic(f"int32x{lanes}", f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", sums, data, weights)


def _depthwise(v: Vectors, sums: PrimExpr, pixels: list[PrimExpr], weights: PrimExpr) -> PrimExpr:
    """Products of four pixels of sixteen channels, which are made sixteen channels of four pixels."""
    rows = v.joined(pixels, WORD * LANES)
    lane = v.ramp("int8", WORD * LANES)
    pixel = v.bitwise_and(lane, v.all(3, "int8", WORD * LANES))
    channel = v.shift_right(lane, v.all(2, "int8", WORD * LANES))
    source = pixel * v.all(LANES, "int8", WORD * LANES) + channel
    data = v.intrinsic(_BYTES, "llvm.x86.avx512.permvar.qi.512", v.reinterpret(_BYTES, rows), source)
    return _vpdpbusd(v, sums, data, weights, LANES)


def _look_up(v: Vectors, quarters: list[PrimExpr], index: PrimExpr) -> PrimExpr:
    """An instruction looks 64 bytes up in 128 by their low seven bits. The high bit says which of two results holds."""
    halves = [
        v.intrinsic(_BYTES, "llvm.x86.avx512.vpermi2var.qi.512", first, index, second)
        for first, second in (quarters[:2], quarters[2:])
    ]
    return v.select(index >= v.all(0, "int8", WORD * LANES), *halves)


AVX512 = InstructionSet(
    architecture=ARCHITECTURE.name,
    features=(
        Feature("avx512f", "avx512f"),
        Feature("avx512bw", "avx512bw"),
        Feature("avx512dq", "avx512dq"),
        Feature("avx512vl", "avx512vl"),
        Feature("avx512fp16", "avx512_fp16"),
        Feature("avx512vnni", "avx512_vnni", ("integers",)),
        Feature("avx512vbmi", "avx512vbmi", ("integers",)),
        Feature("avx512bf16", "avx512_bf16", ("bfloat16",)),
    ),
    registers=Registers(16, 32, "avx512f"),
    dots=(
        Dot("autotune_vpdpbusd_512", 16, ("avx512vnni",), 31, vnni),
        Dot("autotune_vpdpbusd_256_evex", 8, ("avx512vnni", "avx512vl"), 31, vnni),
        Dot("autotune_dpbf16ps_512", 16, ("avx512bf16",), 31, partial(bfloat16_dot, _DOT), "bfloat16", rate=2.0),
        Dot("autotune_bf16_multiply_add", 16, ("avx512f",), 14, multiply_add, "bfloat16", rate=1.0),
    ),
    depthwise=Depthwise("autotune_depthwise_vpdpbusd_512", ("avx512vnni", "avx512vbmi"), 24, _depthwise),
    byte_table=ByteTable(("avx512vbmi",), _look_up),
    functions=_BFLOAT16,
)
