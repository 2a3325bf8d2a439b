"""The words in which files of instruction sets write instructions, which load no TVM themselves."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from autotune.tvm_backend.types import PrimExpr


class Vectors:
    """Expressions on vectors."""

    intrinsic = staticmethod(tirx.call_llvm_pure_intrin)  # an intrinsic of LLVM: a type, its name and operands
    function = staticmethod(tirx.call_pure_extern)  # one of the `LlvmFunctions` of a set: a type, its name and operands
    reinterpret = staticmethod(tirx.reinterpret)  # the same bits as another type
    shift_left = staticmethod(tirx.shift_left)  # each lane shifted by that of the other
    shift_right = staticmethod(tirx.shift_right)  # each lane shifted by that of the other
    bitwise_and = staticmethod(tirx.bitwise_and)  # the bits that both have
    bitwise_xor = staticmethod(tirx.bitwise_xor)  # the bits that one of both has
    select = staticmethod(tirx.Select)  # by lane, one where a condition holds, else the other

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

    def lower_half(self, words: PrimExpr, lanes: int) -> PrimExpr:
        """The lower halves of words, which are bfloat16, as float32."""
        return self.reinterpret(f"float32x{lanes}", tirx.shift_left(words, self.all(16, "uint32", lanes)))

    def upper_half(self, words: PrimExpr, lanes: int) -> PrimExpr:
        """The upper halves of words, which are bfloat16, as float32."""
        return self.reinterpret(f"float32x{lanes}", tirx.bitwise_and(words, self.all(0xFFFF0000, "uint32", lanes)))


VECTORS = Vectors()
