"""The types of the elements that images are packed with, as values that programs are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.tvm_backend.intrinsics.elements import DTYPE, from_float, to_float
from autotune.tvm_backend.operators.integer_product import to_byte
from autotune.tvm_backend.types import PrimExpr


@dataclass(frozen=True)
class ElementType:
    """How the elements of images are kept in memory.

    Attributes:
        name: What the names of kernels on them begin with.
        dtype: Of the buffers that they are kept in.
        word: Products that one instruction adds up.
        read: Makes a float32 of an element.
        write: Makes an element of a float32, rounded: of bytes from their zero point, least and greatest value, too.
        is_ordered: Whether the numbers of `dtype` are in the order of the elements that they stand for.
    """

    name: str
    dtype: str
    word: int
    read: Callable[[PrimExpr], PrimExpr]
    write: Callable[..., PrimExpr]
    is_ordered: bool


BFLOAT16 = ElementType("bfloat16", DTYPE, 2, to_float, from_float, is_ordered=False)
BYTES = ElementType("integer", "uint8", 4, lambda byte: byte.astype("float32"), to_byte, is_ordered=True)
