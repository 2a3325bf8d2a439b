"""Instructions for sums of products of packed weights, which have no sign, with activations in signed bytes.

LLVM is asked for no instruction that the CPU of a target lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.tirx.script import builder as T

from autotune.tvm_backend.intrinsics.dots import Operand, intrinsic
from autotune.tvm_backend.isa.available import has
from autotune.tvm_backend.types import Buffer, PrimExpr, Target

WORD = 4  # products that one instruction adds up for each sum
_MAX_NARROW_BITS = 6  # sums of two products of more bits with bytes would saturate


@dataclass(frozen=True)
class PackedDot:
    """An intrinsic for c[i] += sum over k of a[k] * b[i, k], with a of signed bytes and b of weights without a sign.

    Attributes:
        name: Under which it is registered.
        lanes: Sums that it computes, i.
        features: Of the CPU, as LLVM names them.
        narrow: Whether it is for weights of up to 6 bits only, as otherwise sums of two products would saturate.
    """

    name: str
    lanes: int
    features: tuple[str, ...]
    narrow: bool = False


# In the order of preference.
PACKED_DOTS = (
    PackedDot("autotune_packed_vpdpbusd_512", 16, ("avx512vnni",)),
    PackedDot("autotune_packed_vpdpbusd_256", 8, ("avxvnni",)),
    PackedDot("autotune_packed_pmaddubsw_256", 8, ("avx2",), narrow=True),
)


def packed_dot(target: Target, bits: int) -> PackedDot | None:
    """Return the best instruction that the CPU of a target has for weights of so many bits; None if it has none."""
    narrow = bits <= _MAX_NARROW_BITS
    return next((dot for dot in PACKED_DOTS if has(target, *dot.features) and (narrow or not dot.narrow)), None)


def dot_named(name: str) -> PackedDot | None:
    """Return the instruction of this name; None if there is none."""
    return next((dot for dot in PACKED_DOTS if dot.name == name), None)


def _repeated(data: Buffer, lanes: int) -> PrimExpr:
    """Four bytes, repeated to fill a vector."""
    word = tirx.reinterpret("int32", data.vload([0], dtype="int8x4"))
    return tirx.reinterpret(f"int8x{WORD * lanes}", tirx.Broadcast(word, lanes))


def _vpdpbusd(lanes: int, data: Buffer, weights: Buffer, sums: Buffer) -> PrimExpr:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"  # LLVM encodes it for AVX-VNNI too
    unsigned = tirx.reinterpret(f"int8x{WORD * lanes}", weights.vload([0, 0], dtype=f"uint8x{WORD * lanes}"))
    before = sums.vload([0], dtype=f"int32x{lanes}")
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, before, unsigned, _repeated(data, lanes))


def _pmaddubsw(lanes: int, data: Buffer, weights: Buffer, sums: Buffer) -> PrimExpr:
    unsigned = tirx.reinterpret(f"int8x{WORD * lanes}", weights.vload([0, 0], dtype=f"uint8x{WORD * lanes}"))
    wide = f"int16x{2 * lanes}"
    pairs = tirx.call_llvm_pure_intrin(wide, "llvm.x86.avx2.pmadd.ub.sw", unsigned, _repeated(data, lanes))
    ones = tirx.Broadcast(tirx.const(1, "int16"), 2 * lanes)
    added = tirx.call_llvm_pure_intrin(f"int32x{lanes}", "llvm.x86.avx2.pmadd.wd", pairs, ones)
    return sums.vload([0], dtype=f"int32x{lanes}") + added


def register() -> None:
    """Register the instructions with TVM. Schedules name them, also those that are read from a log."""
    for dot in PACKED_DOTS:
        operands = [Operand((WORD,), "int8"), Operand((dot.lanes, WORD), "uint8"), Operand((dot.lanes,), "int32")]
        result = partial(_pmaddubsw if dot.narrow else _vpdpbusd, dot.lanes)
        described = intrinsic(operands, lambda _, k: (k,), lambda value: T.cast(value, "int32"), result)
        TensorIntrin.register(dot.name, *described, override=True)
