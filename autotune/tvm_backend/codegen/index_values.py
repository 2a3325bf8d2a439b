"""The values of indices: expressions of constants, variables and the operators that indices are made of."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx import IntImm

from autotune.tvm_backend.types import PrimExpr, Stmt

# On numbers, and on arrays of them.
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": np.minimum,
    "Max": np.maximum,
}
_Evaluate = Callable[[Mapping[PrimExpr, Any]], Any]


@dataclass(frozen=True)
class Index:
    """An expression of constants, variables and the operators above."""

    expression: PrimExpr

    @classmethod
    def read(cls, expression: PrimExpr, values: Mapping[PrimExpr, PrimExpr]) -> Index | None:
        """Return an index with the values of variables in place of them; None if it holds anything else."""
        replaced = _replaced(expression, values)
        return None if replaced is None else cls(replaced)

    def at_zero(self, variables: Collection[PrimExpr]) -> PrimExpr:
        """Return the expression with zero in place of some variables."""
        return _replaced(self.expression, {item: IntImm(str(item.ty.dtype), 0) for item in variables})

    @cached_property
    def value(self) -> _Evaluate:
        """What returns the value, given that of each variable: a number, or an array of numbers."""
        return _evaluator(self.expression)


def _replaced(expression: PrimExpr, values: Mapping[PrimExpr, PrimExpr]) -> PrimExpr | None:
    kind = type(expression).__name__
    if kind == "IntImm":
        return expression
    if kind == "Var":
        return _replaced(values[expression], values) if expression in values else expression
    if kind not in _OPERATORS:
        return None
    operands = _replaced(expression.a, values), _replaced(expression.b, values)
    return None if any(part is None for part in operands) else getattr(tirx, kind)(*operands)


def _evaluator(expression: PrimExpr) -> _Evaluate:
    kind = type(expression).__name__
    if kind == "IntImm":
        constant = int(expression.value)
        return lambda values: constant
    if kind == "Var":
        return operator.itemgetter(expression)
    compute = _OPERATORS[kind]
    first = _evaluator(expression.a)
    second = _evaluator(expression.b)
    return lambda values: compute(first(values), second(values))


def block_in(loop: Stmt) -> Stmt:
    """Return what the innermost of the loops in a loop computes."""
    while hasattr(loop, "body"):
        loop = loop.body
    return loop
