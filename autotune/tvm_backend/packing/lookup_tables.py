"""Functions of one quantised value as tables of 256 bytes: they take the place of any chain of such functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, values_of
from autotune.tvm_backend.operators.element_functions import FUNCTIONS
from autotune.tvm_backend.types import Expr, Var

Array = npt.NDArray[Any]
_DEEPEST = 32  # operators between a value and what it is a function of


class NotUnary(Exception):
    """A value is no function of one quantised value."""


class UnaryLookupTable:
    """Evaluates an expression at the 256 values that the quantised value it depends on can have.

    Args:
        values: The value of each variable.
        leaf: For a dequantised value, returns the variable of its bytes, and the number for each byte; None for any
            other.
        constant: Returns the number that an expression always is; None if it is not always the same number.
    """

    def __init__(
        self,
        values: Mapping[Var, Expr],
        leaf: Callable[[Expr], tuple[Expr, Array] | None],
        constant: Callable[[Expr], Array | None],
    ) -> None:
        self._values = values
        self._leaf = leaf
        self._constant = constant
        self.source: Expr = None

    def __call__(self, expr: Expr, depth: int = 0) -> Array:
        """Return the numbers, float32, for the bytes 0 to 255 of `source`, which is known afterwards.

        Raises:
            NotUnary: There are several such values, or none, or there is an operator without a function here.
        """
        number = self._constant(expr)
        if number is not None:
            return number
        leaf = self._leaf(expr)
        if leaf is not None:
            return self._at_leaf(*leaf)
        value = self._values.get(expr) if isinstance(expr, relax.Var) else expr
        if depth > _DEEPEST or not isinstance(value, relax.Call):
            raise NotUnary
        if op_name(value) == "relax.clip":
            inner, low, high = value.args
            return np.clip(self(inner, depth + 1), np.float32(float(low.value)), np.float32(float(high.value)))
        function = FUNCTIONS.get(op_name(value))
        if function is None or function.numbers is None:
            raise NotUnary
        with np.errstate(all="ignore"):
            result = function.numbers(*(self(item, depth + 1) for item in value.args))
        return np.asarray(result, dtype=np.float32)

    def _at_leaf(self, source: Expr, numbers: Array) -> Array:
        if self.source is not None and not self.source.same_as(source):
            raise NotUnary
        self.source = source
        return numbers


def single_number(expr: Expr) -> Array | None:
    """Return the number that a constant of one element is; None for any other expression."""
    if not is_tensor_constant(expr) or str(expr.ty.dtype) != "float32":
        return None
    value: Array = values_of(expr)
    return value.reshape(()) if value.size == 1 else None
