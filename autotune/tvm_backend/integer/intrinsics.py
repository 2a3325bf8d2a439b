"""The instructions for integer products, as tensor intrinsics, and which of them the CPU of a target has.

LLVM aborts the process when it is asked for an instruction that the CPU lacks. So a target is asked for its features
before a schedule names an intrinsic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.target import codegen
from tvm.tirx.script import builder as T

from autotune.machine.hardware import cpu_flags
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc, Target

Load = Callable[[int, str], PrimExpr]  # the elements from an index on, as a vector of a type


@dataclass(frozen=True)
class Dot:
    """An intrinsic for c[i] += sum over k of a[k] * b[i, k], with a of unsigned and b of signed bytes.

    Attributes:
        name: Under which it is registered.
        lanes: Sums that it computes, i.
        features: Of the CPU, as LLVM names them.
        narrow: Whether weights must lie in -64..63, as otherwise sums of two products would saturate.
        registers: Those that the sums and the weights of a tile may fill, in units of `lanes`.
        words: Whether it reads data as 16-bit words, and weights in the order of `channel_at`.
        rate: The multiply-adds that a CPU does with it at most for each one of float32: those of one of its multiplying
            instructions for each lane.
    """

    name: str
    lanes: int
    features: tuple[str, ...]
    registers: int
    narrow: bool = False
    words: bool = False
    rate: float = 4.0


def channel_at(position: PrimExpr) -> PrimExpr:
    """Return which of four channels the weight at a position is for: 0, 2, 1, 3.

    So the even bytes of four weights, and the odd ones, are for channels whose words lie side by side.
    """
    return position % 2 * 2 + position // 2


# In the order of preference.
DOTS = (
    Dot("autotune_vpdpbusd_512", 16, ("avx512vnni",), 31),
    Dot("autotune_vpdpbusd_256_evex", 8, ("avx512vnni", "avx512vl"), 31),
    Dot("autotune_vpdpbusd_256", 8, ("avxvnni",), 14),
    Dot("autotune_pmaddubsw_256", 8, ("avx2",), 16, narrow=True, rate=2.0),
    Dot("autotune_pmaddwd_words_256", 8, ("avx2",), 16, words=True, rate=2.0),
)
DEPTHWISE = Dot("autotune_depthwise_vpdpbusd_512", 16, ("avx512vnni", "avx512vbmi"), 24)


_TILES = "amx-int8"
_RATE_OF_TILES = 32.0  # as `Dot.rate`: 1,024 multiply-adds a cycle for 32 of float32


@dataclass(frozen=True)
class Instructions:
    """The instructions that may compute a product.

    Attributes:
        vector: The name of the intrinsic for vectors; "" for none.
        tiles: Whether there are tiles too.
    """

    vector: str
    tiles: bool = False

    @property
    def words(self) -> bool:
        """Whether the intrinsic reads data as 16-bit words."""
        return any(dot.words for dot in DOTS if dot.name == self.vector)


def dot_instructions(target: Target, *, narrow: bool) -> Instructions:
    """Return the best instructions for dot products that the CPU of a target has.

    Args:
        target: The target.
        narrow: Whether all weights lie in -64..63.
    """
    dot = best_dot(target, narrow=narrow)
    return Instructions("" if dot is None else dot.name, has_tiles(target, _TILES))


def best_dot(target: Target, *, narrow: bool = False) -> Dot | None:
    """Return the best intrinsic for dot products that the CPU of a target has the instructions of; None if none.

    Args:
        target: The target.
        narrow: Whether all weights lie in -64..63.
    """
    return next((dot for dot in DOTS if has(target, dot) and (narrow or not dot.narrow)), None)


def rate(target: Target) -> float:
    """Return how many multiply-adds of bytes the CPU of a target does at most for each one of float32."""
    return most_of(target, DOTS, _RATE_OF_TILES if has_tiles(target, _TILES) else 1.0)


def most_of(target: Target, dots: Sequence[Dot], least: float) -> float:
    """Return the highest rate of the intrinsics that the CPU of a target has, or `least` if that is higher."""
    return max([least, *(dot.rate for dot in dots if has(target, dot))])


def depthwise_instructions(target: Target) -> Instructions:
    """Return the best instructions for depthwise convolutions that the CPU of a target has."""
    return Instructions(DEPTHWISE.name if has(target, DEPTHWISE) else "")


def has(target: Target, dot: Dot) -> bool:
    """Return whether the CPU of a target has the instructions of an intrinsic."""
    return _has_features(target, *dot.features)


def permutes_bytes(target: Target) -> bool:
    """Return whether the CPU of a target permutes the bytes of a vector."""
    return _has_features(target, "avx512vbmi")


def _has_features(target: Target, *features: str) -> bool:
    if target.kind.name != "llvm":
        return False
    return all(codegen.llvm_cpu_has_features(feature, target) for feature in features)


def has_tiles(target: Target, feature: str) -> bool:
    """Return whether the CPU of a target has tiles. A virtual machine may hide those of the CPU that it is.

    Args:
        target: The target.
        feature: What LLVM calls the products of tiles.
    """
    here = not target.attrs.get("mtriple")
    hidden = here and feature.replace("-", "_") not in cpu_flags()
    return codegen.llvm_cpu_has_features(feature, target) and not hidden


def _bytes(load: Load, lanes: int) -> PrimExpr:
    """Four bytes, repeated to fill a vector."""
    word = tirx.reinterpret("int32", load(0, "uint8x4"))
    return tirx.reinterpret(f"int8x{4 * lanes}", tirx.Broadcast(word, lanes))


def _vpdpbusd(sums: PrimExpr, data: PrimExpr, weights: PrimExpr, lanes: int) -> PrimExpr:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"  # LLVM encodes it for AVX-VNNI too
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, data, weights)


def _vnni(sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    return _vpdpbusd(sums, _bytes(load, lanes), weights, lanes)


def _pmaddubsw(sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    wide = f"int16x{2 * lanes}"
    pairs = tirx.call_llvm_pure_intrin(wide, "llvm.x86.avx2.pmadd.ub.sw", _bytes(load, lanes), weights)
    ones = tirx.Broadcast(tirx.const(1, "int16"), 2 * lanes)
    return sums + tirx.call_llvm_pure_intrin(f"int32x{lanes}", "llvm.x86.avx2.pmadd.wd", pairs, ones)


def _pmaddwd(sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    """Even and odd weights apart, each widened to 16 bits: no sum of two products overflows 32 bits."""
    wide = f"int16x{2 * lanes}"
    eight = tirx.Broadcast(tirx.const(8, "int16"), 2 * lanes)
    signed = tirx.reinterpret(wide, weights)
    factors = tirx.shift_right(tirx.shift_left(signed, eight), eight), tirx.shift_right(signed, eight)
    for first, factor in zip((0, 2), factors, strict=True):
        pair = tirx.reinterpret("int32", load(first, "int16x2"))
        words = tirx.reinterpret(wide, tirx.Broadcast(pair, lanes))
        sums = sums + tirx.call_llvm_pure_intrin(f"int32x{lanes}", "llvm.x86.avx2.pmadd.wd", words, factor)
    return sums


def _transposed(pixels: list[PrimExpr]) -> PrimExpr:
    """4 pixels of 16 channels, as 16 channels of 4 pixels."""
    rows = tirx.Shuffle(pixels, [tirx.const(index, "int32") for index in range(64)])
    lane = tirx.Ramp(tirx.const(0, "int8"), tirx.const(1, "int8"), 64)

    def all_lanes(value: int) -> PrimExpr:
        return tirx.Broadcast(tirx.const(value, "int8"), 64)

    source = tirx.bitwise_and(lane, all_lanes(3)) * all_lanes(16) + tirx.shift_right(lane, all_lanes(2))
    name = "llvm.x86.avx512.permvar.qi.512"
    return tirx.call_llvm_pure_intrin("int8x64", name, tirx.reinterpret("int8x64", rows), source)


_STEPS = {
    "autotune_vpdpbusd_512": _vnni,
    "autotune_vpdpbusd_256_evex": _vnni,
    "autotune_vpdpbusd_256": _vnni,
    "autotune_pmaddubsw_256": _pmaddubsw,
    "autotune_pmaddwd_words_256": _pmaddwd,
}


def add_products(dot: Dot, sums: PrimExpr, load: Load, weights: PrimExpr) -> PrimExpr:
    """Return sums to which the products of four elements of the data are added.

    Args:
        dot: The intrinsic.
        sums: 32-bit integers, `dot.lanes` of them.
        load: Returns the elements from one of the four on, as a vector of a type.
        weights: Four bytes for each sum.
    """
    return _STEPS[dot.name](sums, load, weights, dot.lanes)


def register() -> None:
    """Register the intrinsics with TVM. Schedules name them, also those that are read from a log."""
    for dot in DOTS:
        TensorIntrin.register(dot.name, *_dot(dot), override=True)
    TensorIntrin.register(DEPTHWISE.name, *_depthwise(), override=True)


def _dot(dot: Dot) -> tuple[PrimFunc, PrimFunc]:
    lanes = dot.lanes

    def result(a: Buffer, b: Buffer, c: Buffer) -> PrimExpr:
        weights = b.vload([0, 0], dtype=f"int8x{4 * lanes}")
        return add_products(dot, c.vload([0], dtype=f"int32x{lanes}"), lambda k, dtype: a.vload([k], dtype), weights)

    return intrinsic(
        [Operand((4,), "int16" if dot.words else "uint8"), Operand((lanes, 4), "int8"), Operand((lanes,), "int32")],
        lambda _, k: (channel_at(k) if dot.words else k,),
        _whole,
        result,
    )


def _depthwise() -> tuple[PrimFunc, PrimFunc]:
    def result(a: Buffer, b: Buffer, c: Buffer) -> PrimExpr:
        pixels = _transposed([a.vload([k, 0, 0], "uint8x16") for k in range(4)])
        return _vpdpbusd(c.vload([0], dtype="int32x16"), pixels, b.vload([0, 0], dtype="int8x64"), 16)

    return intrinsic(
        [Operand((4, 1, 16), "uint8", apart=True), Operand((16, 4), "int8"), Operand((16,), "int32")],
        lambda i, k: (k, 0, i),
        _whole,
        result,
    )


def _whole(value: PrimExpr) -> PrimExpr:
    return T.cast(value, "int32")


@dataclass(frozen=True)
class Operand:
    """A buffer that an intrinsic reads or writes.

    Attributes:
        shape: Its shape.
        dtype: Of its elements.
        apart: Whether what its first index counts lies apart in memory.
    """

    shape: tuple[int, ...]
    dtype: str
    apart: bool = False

    def matched(self, name: str) -> Buffer:
        """Return the buffer, as an argument of the function that is being built."""
        strides = (
            [T.int32(), *(prod(self.shape[first:]) for first in range(2, len(self.shape) + 1))] if self.apart else None
        )
        return T.match_buffer(T.arg(name, T.handle()), self.shape, self.dtype, offset_factor=1, strides=strides)


def intrinsic(
    operands: Sequence[Operand],
    place: Callable[[PrimExpr, PrimExpr], tuple[PrimExpr, ...]],
    factor: Callable[[PrimExpr], PrimExpr],
    result: Callable[..., PrimExpr],
) -> tuple[PrimFunc, PrimFunc]:
    """Return what an intrinsic for c[i] += sum over k of a[place(i, k)] * b[i, k] computes, and how.

    Args:
        operands: a, b and c.
        place: The element of a.
        factor: Makes a factor of an element.
        result: The vector c of the buffers a, b and c.
    """
    lanes, count = operands[1].shape
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        a, b, c = _matched(operands)
        with T.sblock("root"):
            accesses(a, b, c)
            with T.serial(0, lanes) as i, T.serial(0, count) as k, T.sblock("update"):
                vi = T.axis.spatial(lanes, i)
                vk = T.axis.reduce(count, k)
                position = place(vi, vk)
                T.reads(c[vi], a[position], b[vi, vk])
                T.writes(c[vi])
                T.buffer_store(c, c[vi] + factor(a[position]) * factor(b[vi, vk]), [vi])
    described = builder.get()
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        a, b, c = _matched(operands)
        with T.sblock("root"):
            accesses(a, b, c)
            T.buffer_store(c, result(a, b, c), [T.ramp(T.int32(0), 1, lanes)])
    return described, builder.get()


def _matched(operands: Sequence[Operand]) -> list[Buffer]:
    return [operand.matched(name) for operand, name in zip(operands, "abc", strict=True)]


def accesses(data: Buffer, weight: Buffer, sums: Buffer) -> None:
    """Say of a block that it reads all of its operands, and writes the sums."""
    whole = [item[tuple(slice(0, extent) for extent in item.shape)] for item in (sums, data, weight)]
    T.reads(*whole)
    T.writes(whole[0])
