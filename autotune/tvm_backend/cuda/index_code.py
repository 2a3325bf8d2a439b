"""Indices and conditions of tensor programs as CUDA C."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import sym

from autotune.tvm_backend.cuda.pipeline_tiles import MARK
from autotune.tvm_backend.types import PrimExpr

_OPERATORS = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "EQ": "==",
    "NE": "!=",
    "And": "&&",
    "Or": "||",
}
# By operators of C, and by functions of `pipeline.cuh` where what is divided may be negative.
_DIVISIONS = {"FloorDiv": ("/", f"{MARK}floor_div"), "FloorMod": ("%", f"{MARK}floor_mod")}
_BOUNDS = {"Min": "min", "Max": "max"}


class NoIndex(ValueError):
    """An expression that is neither an index nor a condition."""


def code_of(expression: PrimExpr, names: Mapping[PrimExpr, str], analyzer: sym.Analyzer) -> str:
    """Return CUDA C.

    Args:
        expression: Of integers, comparisons and what connects these.
        names: What the variables are called.
        analyzer: Knows the ranges of the variables: what is not negative is divided as C divides.

    Raises:
        NoIndex: It is another expression, or has a variable without a name.
    """
    kind = type(expression).__name__
    if kind == "Var":
        if expression not in names:
            raise NoIndex(f"an index depends on {expression.name}")
        return names[expression]
    if kind == "IntImm":
        return str(int(expression.value))
    if kind == "Cast":
        return code_of(expression.value, names, analyzer)
    if kind == "Not":
        return f"!{code_of(expression.a, names, analyzer)}"
    if kind not in {*_OPERATORS, *_DIVISIONS, *_BOUNDS}:
        raise NoIndex(f"{kind} is in an index")
    first, second = (code_of(side, names, analyzer) for side in (expression.a, expression.b))
    if kind in _OPERATORS:
        return f"({first} {_OPERATORS[kind]} {second})"
    if kind in _BOUNDS:
        return f"{_BOUNDS[kind]}({first}, {second})"
    operator, function = _DIVISIONS[kind]
    positive = analyzer.can_prove(expression.a >= 0) and analyzer.can_prove(expression.b > 0)
    return f"({first} {operator} {second})" if positive else f"{function}({first}, {second})"
