"""The types of the elements that images are packed with, as values that programs are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import te, tirx

from autotune.tvm_backend.intrinsics.amx_and_vector_tiles import BFLOAT16_DOT, DOT_BLOCK
from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE, from_float, to_float
from autotune.tvm_backend.isa.values import WORD
from autotune.tvm_backend.types import PrimExpr

LEVELS = 256  # values of a byte
_WHOLE = 12582912.0  # 1.5 * 2^23
_WHOLE_BITS = 0x4B400000  # of that float


def rounded(value: PrimExpr, zero: PrimExpr) -> PrimExpr:
    """A float rounded half to even, as ONNX asks, and moved to a zero point."""
    return tirx.round(value) + zero


def to_byte(value: PrimExpr, zero: PrimExpr, low: PrimExpr, high: PrimExpr) -> PrimExpr:
    """A float as an unsigned byte: rounded half to even, moved to a zero point, not below `low` nor above `high`.

    The sum with 1.5 * 2^23 has the whole number in its last bits. That takes fewer instructions than to round and to
    convert, and a kernel that writes many bytes for few products spends most of its time on these.
    """
    inside = te.max(te.min(value, high - zero), low - zero)
    bits = tirx.reinterpret("int32", inside + tirx.const(_WHOLE, "float32"))
    return (bits - tirx.const(_WHOLE_BITS, "int32") + zero.astype("int32")).astype("uint8")


@dataclass(frozen=True)
class PackedElement:
    """How the elements of images are kept in memory.

    Attributes:
        name: What the names of kernels on them begin with.
        dtype: Of the buffers that they are kept in.
        word: Products that one instruction adds up.
        read: Makes a float32 of an element.
        write: Makes an element of a float32, rounded: of bytes from their zero point, least and greatest value, too.
        block: The name of the block of products of them, and of the rule that schedules it.
        factor: Makes of an element what is multiplied.
        is_ordered: Whether the numbers of `dtype` are in the order of the elements that they stand for.
    """

    name: str
    dtype: str
    word: int
    read: Callable[[PrimExpr], PrimExpr]
    write: Callable[..., PrimExpr]
    block: str
    factor: Callable[[PrimExpr], PrimExpr]
    is_ordered: bool


BFLOAT16 = PackedElement("bfloat16", DTYPE, 2, to_float, from_float, BFLOAT16_DOT, to_float, is_ordered=False)
BYTES = PackedElement(
    "integer",
    "uint8",
    WORD,
    lambda byte: byte.astype("float32"),
    to_byte,
    DOT_BLOCK,
    lambda byte: byte.astype("int32"),
    is_ordered=True,
)
