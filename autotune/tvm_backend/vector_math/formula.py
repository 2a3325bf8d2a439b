"""Steps of a computation on vectors of one length, each bound to a variable so that none is computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Expr = Any  # a TIR expression; TVM has no types

# Adding it to a number below 2**22 in size rounds that number to an integer, which then lies in the low bits.
_ROUNDER = 12582912.0
_ROUNDER_BITS = 0x4B400000


class Formula:
    """Collects bindings for expressions of `lanes` elements; `close` puts them around the result."""

    def __init__(self, lanes: int) -> None:
        self._suffix = f"x{lanes}" if lanes > 1 else ""
        self._bound: list[tuple[Expr, Expr]] = []

    def const(self, number: float, kind: str = "float32") -> Expr:
        """A number in all lanes."""
        from tvm import tirx

        return tirx.const(number, kind + self._suffix)

    def let(self, value: Expr) -> Expr:
        """A variable that stands for a value."""
        from tvm import tirx

        var = tirx.Var(f"v{len(self._bound)}", value.ty)
        self._bound.append((var, value))
        return var

    def close(self, result: Expr) -> Expr:
        """The result as one expression."""
        from tvm import tirx

        for var, value in reversed(self._bound):
            result = tirx.Let(var, value, result)
        return result

    def cast(self, value: Expr, kind: str) -> Expr:
        """The nearest number of another type; floats are cut off on the way to integers."""
        return value.astype(kind + self._suffix)

    def bits(self, value: Expr, kind: str = "int32") -> Expr:
        """The same bits as another type of the same size."""
        from tvm import tirx

        return tirx.reinterpret(kind + self._suffix, value)

    def select(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """Lane by lane, `yes` where the condition holds; both are computed."""
        from tvm import tirx

        return tirx.Select(condition, self._number(yes), self._number(no))

    def at_most(self, value: Expr, limit: float, kind: str = "float32") -> Expr:
        """The smaller of both; not-a-number stays, because the comparison with the limit fails."""
        from tvm import tirx

        return self.let(tirx.Min(self.const(limit, kind), value))

    def at_least(self, value: Expr, limit: float, kind: str = "float32") -> Expr:
        """The larger of both; not-a-number stays."""
        from tvm import tirx

        return self.let(tirx.Max(self.const(limit, kind), value))

    def rounded(self, value: Expr) -> tuple[Expr, Expr]:
        """The nearest integer of a float below 2**22 in size, as a float and as an int32."""
        shifted = self.let(value + _ROUNDER)
        return self.let(shifted - _ROUNDER), self.let(self.bits(shifted) - _ROUNDER_BITS)

    def polynomial(self, x: Expr, coefficients: Sequence[float], kind: str = "float32") -> Expr:
        """`coefficients[0] + coefficients[1] * x + ...`, by Horner's rule."""
        result = self.const(coefficients[-1], kind)
        for coefficient in reversed(coefficients[:-1]):
            result = result * x + self.const(coefficient, kind)
        return result

    def magnitude(self, x: Expr) -> Expr:
        """|x|."""
        return self.let(self.bits(self.bits(x) & 0x7FFFFFFF, "float32"))

    def signed(self, size: Expr, like: Expr) -> Expr:
        """A number that is not negative, with the sign of another."""
        return self.bits(self.bits(size) | (self.bits(like) & self.const(-(2**31), "int32")), "float32")

    def _number(self, value: Expr) -> Expr:
        return self.const(value) if isinstance(value, float) else value
