"""The instructions for products as tensor intrinsics, which schedules name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from autotune.tvm_backend.intrinsics.bfloat16 import to_float
from autotune.tvm_backend.isa.instruction_sets import SETS
from autotune.tvm_backend.isa.values import LANES, WORD, Depthwise, Dot, Load
from autotune.tvm_backend.isa.vectors import VECTORS
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc


def channel_at(position: PrimExpr) -> PrimExpr:
    """Return which of four channels the weight at a position is for: 0, 2, 1, 3.

    So the even bytes of four weights, and the odd ones, are for channels whose words lie side by side.
    """
    return position % 2 * 2 + position // 2


def add_products(dot: Dot, sums: PrimExpr, load: Load, weights: PrimExpr) -> PrimExpr:
    """Return sums to which the products of a word of the data are added.

    Args:
        dot: The intrinsic.
        sums: `dot.lanes` of them.
        load: Returns the elements from one of the word on, as a vector of a type.
    """
    return dot.step(VECTORS, sums, load, weights, dot.lanes)


def register() -> None:
    """Register the intrinsics with TVM. Schedules name them, also those that are read from a log."""
    for item in SETS:
        for dot in item.dots:
            TensorIntrin.register(dot.name, *_dot(dot), override=True)
        if item.depthwise is not None:
            TensorIntrin.register(item.depthwise.name, *_depthwise(item.depthwise), override=True)


def _dot(dot: Dot) -> tuple[PrimFunc, PrimFunc]:
    data, weight, sums = dot.types
    lanes = dot.lanes

    def result(a: Buffer, b: Buffer, c: Buffer) -> PrimExpr:
        weights = b.vload([0, 0], dtype=f"{weight}x{lanes * dot.depth}")
        return add_products(dot, c.vload([0], dtype=f"{sums}x{lanes}"), lambda k, dtype: a.vload([k], dtype), weights)

    return intrinsic(
        [Operand((dot.depth,), data), Operand((lanes, dot.depth), weight), Operand((lanes,), sums)],
        lambda _, k: (channel_at(k) if dot.words else k,),
        to_float if dot.elements == "bfloat16" else _whole,
        result,
        dot.offset,
    )


def _depthwise(depthwise: Depthwise) -> tuple[PrimFunc, PrimFunc]:
    def result(a: Buffer, b: Buffer, c: Buffer) -> PrimExpr:
        pixels = [a.vload([k, 0, 0], f"uint8x{LANES}") for k in range(WORD)]
        sums = c.vload([0], dtype=f"int32x{LANES}")
        return depthwise.step(VECTORS, sums, pixels, b.vload([0, 0], dtype=f"int8x{WORD * LANES}"))

    return intrinsic(
        [Operand((WORD, 1, LANES), "uint8", apart=True), Operand((LANES, WORD), "int8"), Operand((LANES,), "int32")],
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
    offset: int = 0,
) -> tuple[PrimFunc, PrimFunc]:
    """Return what an intrinsic for c[i] += sum over k of (a[place(i, k)] - offset) * b[i, k] computes, and how.

    Args:
        operands: a, b and c.
        place: The element of a.
        factor: Makes a factor of an element.
        result: The vector c of the buffers a, b and c.
        offset: What is taken from each element of a.
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
                one = factor(a[position]) - offset if offset else factor(a[position])
                T.buffer_store(c, c[vi] + one * factor(b[vi, vk]), [vi])
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
