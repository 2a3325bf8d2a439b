"""Collect the steps of a computation on vectors of one length, each bound to a variable: none is computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Expr = Any  # a TIR expression; TVM has no types

# Adding it to a number below 2**22 in size rounds that number to an integer, which then lies in the low bits.
_ROUNDER = 12582912.0
_ROUNDER_BITS = 0x4B400000


class Formula:
    """Collects bindings for expressions of `lanes` elements; `close` puts them around the result.

    A `kind` is a type such as `float32`, without the number of lanes.
    """

    def __init__(self, lanes: int) -> None:
        self._suffix = f"x{lanes}" if lanes > 1 else ""
        self._bound: list[tuple[Expr, Expr]] = []

    def const(self, number: float, kind: str = "float32") -> Expr:
        """Return a vector that has this number in all lanes."""
        from tvm import tirx

        return tirx.const(number, kind + self._suffix)

    def let(self, value: Expr) -> Expr:
        """Bind a value, and return the variable that stands for it."""
        from tvm import tirx

        var = tirx.Var(f"v{len(self._bound)}", value.ty)
        self._bound.append((var, value))
        return var

    def close(self, result: Expr) -> Expr:
        """Return the result with all bindings, as one expression."""
        from tvm import tirx

        for var, value in reversed(self._bound):
            result = tirx.Let(var, value, result)
        return result

    def cast(self, value: Expr, kind: str) -> Expr:
        """Return the nearest numbers of another type. From float to integer, fractions are cut off."""
        return value.astype(kind + self._suffix)

    def bits(self, value: Expr, kind: str = "int32") -> Expr:
        """Return the same bits as another type of the same size."""
        from tvm import tirx

        return tirx.reinterpret(kind + self._suffix, value)

    def select(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """Return, lane by lane, `yes` where the condition holds and `no` elsewhere. Both are computed."""
        from tvm import tirx

        return tirx.Select(condition, self._number(yes), self._number(no))

    def at_most(self, value: Expr, limit: float, kind: str = "float32") -> Expr:
        """Return the smaller of both. Not-a-number stays, because its comparison with the limit fails."""
        from tvm import tirx

        return self.let(tirx.Min(self.const(limit, kind), value))

    def at_least(self, value: Expr, limit: float, kind: str = "float32") -> Expr:
        """Return the larger of both. Not-a-number stays."""
        from tvm import tirx

        return self.let(tirx.Max(self.const(limit, kind), value))

    def rounded(self, value: Expr) -> tuple[Expr, Expr]:
        """Return the nearest integer, as float32 and as int32, of a float32 below 2**22 in size."""
        shifted = self.let(value + _ROUNDER)
        return self.let(shifted - _ROUNDER), self.let(self.bits(shifted) - _ROUNDER_BITS)

    def polynomial(self, x: Expr, coefficients: Sequence[float], kind: str = "float32") -> Expr:
        """Return `coefficients[0] + coefficients[1] * x + ...`, computed by Horner's rule."""
        result = self.const(coefficients[-1], kind)
        for coefficient in reversed(coefficients[:-1]):
            result = result * x + self.const(coefficient, kind)
        return result

    def magnitude(self, x: Expr) -> Expr:
        """Return |x| of a float32."""
        return self.let(self.bits(self.bits(x) & 0x7FFFFFFF, "float32"))

    def negative(self, x: Expr) -> Expr:
        """Return -|x| of a float32."""
        return self.bits(self.bits(x) | self.const(-(2**31), "int32"), "float32")

    def signed(self, size: Expr, like: Expr) -> Expr:
        """Return `size`, a float32 that is not negative, with the sign of `like`."""
        return self.bits(self.bits(size) | (self.bits(like) & self.const(-(2**31), "int32")), "float32")

    def _number(self, value: Expr) -> Expr:
        return self.const(value) if isinstance(value, float) else value
