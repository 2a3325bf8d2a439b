"""The words in which files of instruction sets write instructions, which load no TVM themselves."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from autotune.tvm_backend.types import PrimExpr


class Vectors:
    """Expressions on vectors."""

    @staticmethod
    def intrinsic(dtype: str, name: str, *operands: PrimExpr) -> PrimExpr:
        """An intrinsic of LLVM, of a type."""
        return tirx.call_llvm_pure_intrin(dtype, name, *operands)

    @staticmethod
    def function(dtype: str, name: str, *operands: PrimExpr) -> PrimExpr:
        """One of the `LlvmFunctions` of a set."""
        return tirx.call_pure_extern(dtype, name, *operands)

    @staticmethod
    def reinterpret(dtype: str, value: PrimExpr) -> PrimExpr:
        """The same bits as another type."""
        return tirx.reinterpret(dtype, value)

    @staticmethod
    def all(value: int, dtype: str, lanes: int) -> PrimExpr:
        """A number in all lanes."""
        return tirx.Broadcast(tirx.const(value, dtype), lanes)

    @staticmethod
    def repeated(dtype: str, word: PrimExpr, lanes: int) -> PrimExpr:
        """32 bits as an element of a type, in all lanes."""
        return tirx.Broadcast(tirx.reinterpret(dtype, word), lanes)

    @staticmethod
    def ramp(dtype: str, lanes: int) -> PrimExpr:
        """The numbers from 0 on."""
        return tirx.Ramp(tirx.const(0, dtype), tirx.const(1, dtype), lanes)

    @staticmethod
    def joined(vectors: Sequence[PrimExpr], lanes: int) -> PrimExpr:
        """Vectors one after the other, with so many lanes in all."""
        return tirx.Shuffle(list(vectors), [tirx.const(index, "int32") for index in range(lanes)])

    @staticmethod
    def shift_left(one: PrimExpr, other: PrimExpr) -> PrimExpr:
        """Each lane shifted by that of the other."""
        return tirx.shift_left(one, other)

    @staticmethod
    def shift_right(one: PrimExpr, other: PrimExpr) -> PrimExpr:
        """Each lane shifted by that of the other."""
        return tirx.shift_right(one, other)

    @staticmethod
    def bitwise_and(one: PrimExpr, other: PrimExpr) -> PrimExpr:
        """The bits that both have."""
        return tirx.bitwise_and(one, other)

    @staticmethod
    def bitwise_xor(one: PrimExpr, other: PrimExpr) -> PrimExpr:
        """The bits that one of both has."""
        return tirx.bitwise_xor(one, other)

    @staticmethod
    def select(condition: PrimExpr, one: PrimExpr, other: PrimExpr) -> PrimExpr:
        """By lane, one where a condition holds, else the other."""
        return tirx.Select(condition, one, other)

    def lower_half(self, words: PrimExpr, lanes: int) -> PrimExpr:
        """The lower halves of words, which are bfloat16, as float32."""
        return self.reinterpret(f"float32x{lanes}", tirx.shift_left(words, self.all(16, "uint32", lanes)))

    def upper_half(self, words: PrimExpr, lanes: int) -> PrimExpr:
        """The upper halves of words, which are bfloat16, as float32."""
        return self.reinterpret(f"float32x{lanes}", tirx.bitwise_and(words, self.all(0xFFFF0000, "uint32", lanes)))


VECTORS = Vectors()
