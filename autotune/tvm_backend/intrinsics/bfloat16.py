"""Elements in bfloat16: the upper half of a float32, in buffers of uint16, for TVM cannot compile its own type.

A number is rounded to the nearest such element, to the even one of two. Not-a-number stays: what rounds by integers
would make a zero or an infinity of some of its bits, so they are replaced before code is generated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.types import PrimExpr, PrimFunc

DTYPE = "uint16"
_HALF = 16  # bits of an element
_BELOW_MIDDLE = 0x7FFF
_NOT_A_NUMBER = 0x7FC0


def to_float(element: PrimExpr) -> PrimExpr:
    """Return an element as float32."""
    bits = tirx.shift_left(tirx.Cast("uint32", element), tirx.const(_HALF, "uint32"))
    return tirx.reinterpret("float32", bits)


def from_float(number: PrimExpr) -> PrimExpr:
    """Return a float32, or a vector of them, rounded to elements. Integers do it, which are vectors on every CPU."""
    dtype = number.ty.dtype if hasattr(number, "ty") else number.dtype  # an element of a tensor has no other
    lanes = str(dtype).removeprefix("float32")
    bits = tirx.reinterpret(f"uint32{lanes}", number)

    def constant(value: int) -> PrimExpr:
        scalar = tirx.const(value, "uint32")
        return tirx.Broadcast(scalar, int(lanes[1:])) if lanes else scalar

    odd = tirx.bitwise_and(tirx.shift_right(bits, constant(_HALF)), constant(1))
    rounded = tirx.shift_right(bits + odd + constant(_BELOW_MIDDLE), constant(_HALF))
    return tirx.Cast(f"{DTYPE}{lanes}", rounded)


def keep_not_a_number(program: PrimFunc) -> PrimFunc:
    """Let what `from_float` makes of not-a-number be not-a-number in a lowered program."""
    return program.with_body(tvm_ffi.structural_map(program.body, ((tirx.Cast, _kept),)))


def _kept(element: PrimExpr) -> PrimExpr:
    number = rounded_number(element)
    if number is None:
        return element
    lanes = str(element.ty.dtype).removeprefix(f"{DTYPE}")
    other = tirx.const(_NOT_A_NUMBER, DTYPE)
    return tirx.Select(number == number, element, tirx.Broadcast(other, int(lanes[1:])) if lanes else other)


def rounded_number(element: PrimExpr) -> PrimExpr | None:
    """Return the number, or the vector of numbers, that `from_float` made an element of; None of another expression."""
    shifted: PrimExpr = element.value if isinstance(element, tirx.Cast) else None
    if type(shifted).__name__ != "RShift" or _constant(shifted.b) != _HALF or not isinstance(shifted.a, tirx.Add):
        return None
    total = shifted.a
    bits: PrimExpr = total.a.a if _constant(total.b) == _BELOW_MIDDLE and isinstance(total.a, tirx.Add) else None
    is_bits = getattr(getattr(bits, "op", None), "name", "") == "tirx.reinterpret"
    return bits.args[0] if is_bits else None


def _constant(value: PrimExpr) -> int | None:
    """The number that an expression, or each element of a vector, is; None if it is no constant."""
    number = getattr(value, "value", None)
    number = getattr(number, "value", number)  # of a vector
    return number if isinstance(number, int) else None


def rounded(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Return numbers as elements."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    odd = (bits >> _HALF) & 1
    elements: npt.NDArray[np.uint16] = ((bits + odd + np.uint32(_BELOW_MIDDLE)) >> _HALF).astype(np.uint16)
    elements[np.isnan(bits.view(np.float32))] = _NOT_A_NUMBER
    return elements


def numbers(elements: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return elements as numbers."""
    return (elements.astype(np.uint32) << _HALF).view(np.float32)
