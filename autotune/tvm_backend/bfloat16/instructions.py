"""The instructions for products of bfloat16, as tensor intrinsics, and which of them the CPU of a target has.

As in `integer.intrinsics`, a target is asked for its features before a schedule names an intrinsic.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import TensorIntrin

from autotune.tvm_backend.bfloat16.elements import rounded_number, to_float
from autotune.tvm_backend.integer.intrinsics import Dot, Instructions, Operand, has, has_tiles, intrinsic, most_of
from autotune.tvm_backend.programs import over_programs, with_llvm_code
from autotune.tvm_backend.types import Buffer, Call, IRModule, PrimExpr, PrimFunc, Stmt, Target

_LANES = 16
_PAIR = 2  # products that one instruction adds up
# c[i] += sum over k of a[k] * b[i, k], all of bfloat16 but for the sums; in the order of preference.
DPBF16PS = Dot("autotune_dpbf16ps_512", _LANES, ("avx512bf16",), registers=31, rate=2.0)
MULTIPLY_ADD = Dot("autotune_bf16_multiply_add", _LANES, ("avx512f",), registers=14, rate=1.0)
SPLIT_MULTIPLY_ADD = Dot("autotune_bf16_multiply_add", _LANES, ("avx2",), registers=6, rate=1.0)
DOTS = (DPBF16PS, MULTIPLY_ADD, SPLIT_MULTIPLY_ADD)
_TILES = "amx-bf16"
_RATE_OF_TILES = 16.0

_FUNCTION = "autotune_dpbf16ps"
_ROUND = "autotune_round_bf16"
# TVM has no type for the elements, and LLVM's intrinsics take no other.
_CODE = f"""
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
define <16 x i16> @{_ROUND}(<16 x float> %numbers) alwaysinline {{
  %a = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %numbers)
  %b = bitcast <16 x bfloat> %a to <16 x i16>
  ret <16 x i16> %b
}}
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @{_FUNCTION}(<16 x float> %sums, <32 x i16> %data, <32 x i16> %weights) alwaysinline {{
  %a = bitcast <32 x i16> %data to <32 x bfloat>
  %b = bitcast <32 x i16> %weights to <32 x bfloat>
  %c = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %c
}}
"""


def computes_bfloat16(target: Target) -> bool:
    """Return whether the CPU of a target has instructions for products of bfloat16."""
    return target.kind.name == "llvm" and (has(target, DPBF16PS) or has_tiles(target, _TILES))


def dot_instructions(target: Target) -> Instructions:
    """Return the best instructions for products of bfloat16 that the CPU of a target has."""
    vector = next((dot.name for dot in DOTS if has(target, dot)), "")
    return Instructions(vector, has_tiles(target, _TILES))


def rate(target: Target) -> float:
    """Return how many multiply-adds of bfloat16 the CPU of a target does at most for each one of float32."""
    return most_of(target, DOTS, _RATE_OF_TILES if has_tiles(target, _TILES) else 1.0)


def register() -> None:
    """Register the intrinsics with TVM."""
    for dot, step in ((DPBF16PS, _dpbf16ps), (MULTIPLY_ADD, _multiply_add)):
        TensorIntrin.register(dot.name, *_dot(step), override=True)


def _dpbf16ps(sums: PrimExpr, data: PrimExpr, weights: PrimExpr) -> PrimExpr:
    return tirx.call_pure_extern(f"float32x{_LANES}", _FUNCTION, sums, _vector("uint16", data), weights)


def _multiply_add(sums: PrimExpr, data: PrimExpr, weights: PrimExpr) -> PrimExpr:
    """The products of the lower and of the upper halves of 32 bits apart: a half is widened by zeros behind it."""
    for value in (_lower, _upper):
        sums = sums + value(_vector("uint32", data)) * value(tirx.reinterpret(f"uint32x{_LANES}", weights))
    return sums


def _vector(dtype: str, pair: PrimExpr) -> PrimExpr:
    """Two elements, repeated to fill a vector."""
    words = tirx.Broadcast(tirx.reinterpret("uint32", pair), _LANES)
    return words if dtype == "uint32" else tirx.reinterpret(f"uint16x{_PAIR * _LANES}", words)


def _lower(words: PrimExpr) -> PrimExpr:
    return tirx.reinterpret(f"float32x{_LANES}", tirx.shift_left(words, _all(16)))


def _upper(words: PrimExpr) -> PrimExpr:
    return tirx.reinterpret(f"float32x{_LANES}", tirx.bitwise_and(words, _all(0xFFFF0000)))


def _all(value: int) -> PrimExpr:
    return tirx.Broadcast(tirx.const(value, "uint32"), _LANES)


def _dot(step: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]) -> tuple[PrimFunc, PrimFunc]:
    def result(a: Buffer, b: Buffer, c: Buffer) -> PrimExpr:
        return step(c.vload([0], dtype="float32x16"), a.vload([0], "uint16x2"), b.vload([0, 0], dtype="uint16x32"))

    operands = [Operand((_PAIR,), "uint16"), Operand((_LANES, _PAIR), "uint16"), Operand((_LANES,), "float32")]
    return intrinsic(operands, lambda _, k: (k,), to_float, result)


def with_instructions(module: IRModule) -> IRModule:
    """Round vectors by an instruction, and add the code of the instructions that functions call.

    Args:
        module: What TVM's passes for lowering return, for a CPU that has them.
    """
    return over_programs(module, _with_code)


def _with_code(function: PrimFunc) -> PrimFunc:
    body = tvm_ffi.structural_map(function.body, ((tirx.Cast, _rounded_at_once),))
    return with_llvm_code(function, body, _CODE) if _calls_any(body) else function


def _rounded_at_once(cast: PrimExpr) -> PrimExpr:
    """A vector that `from_float` rounds by integers, rounded by an instruction; another cast as it is."""
    number = rounded_number(cast)
    if number is None or str(cast.ty.dtype) != f"uint16x{_LANES}":
        return cast
    return tirx.call_pure_extern(str(cast.ty.dtype), _ROUND, number)


def _calls_any(body: Stmt) -> bool:
    calls: list[Call] = []

    def look(call: Call) -> None:
        if getattr(call.op, "name", "") == "tirx.call_pure_extern" and call.args[0].value in (_FUNCTION, _ROUND):
            calls.append(call)

    tvm_ffi.structural_walk(body, ((relax.Call, look),))
    return bool(calls)
