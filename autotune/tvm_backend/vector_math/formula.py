"""Collect the steps of a computation on vectors of one length, each bound to a variable: none is computed twice."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from autotune.tvm_backend.types import PrimExpr

# Adding it to a number below 2**22 in size rounds that number to an integer, which then lies in the low bits.
_ROUNDER = 12582912.0
_ROUNDER_BITS = 0x4B400000


class Formula:
    """Collects bindings for expressions of `lanes` elements; `close` puts them around the result.

    `bound` has them so far, each a variable and its value. A `kind` is a type such as `float32`, without the number of
    lanes.
    """

    def __init__(self, lanes: int) -> None:
        self._suffix = f"x{lanes}" if lanes > 1 else ""
        self.bound: list[tuple[PrimExpr, PrimExpr]] = []

    def const(self, number: float, kind: str = "float32") -> PrimExpr:
        """Return a vector that has this number in all lanes."""
        return tirx.const(number, kind + self._suffix)

    def let(self, value: PrimExpr) -> PrimExpr:
        """Bind a value, and return the variable that stands for it: the value itself, if it is a variable."""
        if isinstance(value, tirx.Var):
            return value
        var = tirx.Var(f"v{len(self.bound)}", value.ty)
        self.bound.append((var, value))
        return var

    def close(self, result: PrimExpr) -> PrimExpr:
        """Return the result with all bindings, as one expression."""
        for var, value in reversed(self.bound):
            result = tirx.Let(var, value, result)
        return result

    def cast(self, value: PrimExpr, kind: str) -> PrimExpr:
        """Return the nearest numbers of another type. From float to integer, fractions are cut off."""
        return value.astype(kind + self._suffix)

    def bits(self, value: PrimExpr, kind: str = "int32") -> PrimExpr:
        """Return the same bits as another type of the same size."""
        return tirx.reinterpret(kind + self._suffix, value)

    def select(self, condition: PrimExpr, yes: PrimExpr, no: PrimExpr) -> PrimExpr:
        """Return, lane by lane, `yes` where the condition holds and `no` elsewhere. Both are computed."""
        return tirx.Select(condition, self._number(yes), self._number(no))

    def at_most(self, value: PrimExpr, limit: float, kind: str = "float32") -> PrimExpr:
        """Return the smaller of both. Not-a-number stays, because its comparison with the limit fails."""
        return self.let(tirx.Min(self.const(limit, kind), value))

    def at_least(self, value: PrimExpr, limit: float, kind: str = "float32") -> PrimExpr:
        """Return the larger of both. Not-a-number stays."""
        return self.let(tirx.Max(self.const(limit, kind), value))

    def rounded(self, value: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Return the nearest integer, as float32 and as int32, of a float32 below 2**22 in size."""
        shifted = self.let(value + _ROUNDER)
        return self.let(shifted - _ROUNDER), self.let(self.bits(shifted) - _ROUNDER_BITS)

    def polynomial(self, x: PrimExpr, coefficients: Sequence[float], kind: str = "float32") -> PrimExpr:
        """Return `coefficients[0] + coefficients[1] * x + ...`, computed by Horner's rule."""
        result = self.const(coefficients[-1], kind)
        for coefficient in reversed(coefficients[:-1]):
            result = result * x + self.const(coefficient, kind)
        return result

    def magnitude(self, x: PrimExpr) -> PrimExpr:
        """Return |x| of a float32."""
        return self.let(self.bits(self.bits(x) & 0x7FFFFFFF, "float32"))

    def negative(self, x: PrimExpr) -> PrimExpr:
        """Return -|x| of a float32."""
        return self.bits(self.bits(x) | self.const(-(2**31), "int32"), "float32")

    def signed(self, size: PrimExpr, like: PrimExpr) -> PrimExpr:
        """Return `size`, a float32 that is not negative, with the sign of `like`."""
        return self.bits(self.bits(size) | (self.bits(like) & self.const(-(2**31), "int32")), "float32")

    def _number(self, value: PrimExpr) -> PrimExpr:
        return self.const(value) if isinstance(value, float) else value


def constant_of(value: PrimExpr) -> float | None:
    """Return the number that a constant has, or each element of a vector; None for another value."""
    inner = value.value if isinstance(value, tirx.Broadcast) else value
    return float(inner.value) if isinstance(inner, tirx.FloatImm) else None
