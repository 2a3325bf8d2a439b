"""The instructions for products of bfloat16, as tensor intrinsics, and which of them the CPU of a target has.

As in `integer.intrinsics`, a target is asked for its features before a schedule names an intrinsic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import codegen

from autotune.machine.hardware import cpu_flags
from autotune.tvm_backend.bfloat16.elements import rounded_number, to_float
from autotune.tvm_backend.integer.intrinsics import Dot, Instructions, has
from autotune.tvm_backend.types import Call, IRModule, PrimExpr, PrimFunc, Stmt, Target

_LANES = 16
_PAIR = 2  # products that one instruction adds up
# c[i] += sum over k of a[k] * b[i, k], all of bfloat16 but for the sums; in the order of preference.
DPBF16PS = Dot("autotune_dpbf16ps_512", _LANES, ("avx512bf16",), registers=28)
MULTIPLY_ADD = Dot("autotune_bf16_multiply_add", _LANES, ("avx512f",), registers=12)
SPLIT_MULTIPLY_ADD = Dot("autotune_bf16_multiply_add", _LANES, ("avx2",), registers=4)
DOTS = (DPBF16PS, MULTIPLY_ADD, SPLIT_MULTIPLY_ADD)
_TILES = "amx-bf16"

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
    return target.kind.name == "llvm" and (has(target, DPBF16PS) or _has_tiles(target))


def dot_instructions(target: Target) -> Instructions:
    """Return the best instructions for products of bfloat16 that the CPU of a target has."""
    vector = next((dot.name for dot in DOTS if has(target, dot)), "")
    return Instructions(vector, _has_tiles(target))


def _has_tiles(target: Target) -> bool:
    """Whether the CPU of a target has tiles. A virtual machine may hide those of the CPU that it is."""
    here = not target.attrs.get("mtriple")
    return codegen.llvm_cpu_has_features(_TILES, target) and not (here and "amx_bf16" not in cpu_flags())


def register() -> None:
    """Register the intrinsics with TVM."""
    for dot, step in ((DPBF16PS, _dpbf16ps), (MULTIPLY_ADD, _multiply_add)):
        TensorIntrin.register(dot.name, _described(), _implemented(step), override=True)


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


def _described() -> PrimFunc:
    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def product(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (_PAIR,), "uint16", offset_factor=1)
        B = T.match_buffer(b, (_LANES, _PAIR), "uint16", offset_factor=1)
        C = T.match_buffer(c, (_LANES,), "float32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:_LANES], A[0:_PAIR], B[0:_LANES, 0:_PAIR])
            T.writes(C[0:_LANES])
            for i in T.serial(0, _LANES):
                for k in T.serial(0, _PAIR):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + to_float(A[vk]) * to_float(B[vi, vk])

    return product


def _implemented(step: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]) -> Any:
    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def product(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (_PAIR,), "uint16", offset_factor=1)
        B = T.match_buffer(b, (_LANES, _PAIR), "uint16", offset_factor=1)
        C = T.match_buffer(c, (_LANES,), "float32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:_LANES], A[0:_PAIR], B[0:_LANES, 0:_PAIR])
            T.writes(C[0:_LANES])
            C[T.ramp(T.int32(0), 1, _LANES)] = step(
                C.vload([0], dtype="float32x16"), A.vload([0], "uint16x2"), B.vload([0, 0], dtype="uint16x32")
            )

    return product


def with_instructions(module: IRModule) -> IRModule:
    """Round vectors by an instruction, and add the code of the instructions that functions call.

    Args:
        module: What TVM's passes for lowering return, for a CPU that has them.
    """
    functions = {name: _with_code(function) for name, function in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _with_code(function: PrimFunc) -> PrimFunc:
    if not isinstance(function, tirx.PrimFunc):
        return function
    body = tvm_ffi.structural_map(function.body, ((tirx.Cast, _rounded_at_once),))
    if not _calls_any(body):
        return function
    node = tirx.IntImm("int32", 0)
    return function.with_body(tirx.AttrStmt(node, "pragma_import_llvm", tvm.ir.StringImm(_CODE), body))


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
