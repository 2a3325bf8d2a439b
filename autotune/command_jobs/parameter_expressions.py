"""Expressions over parameters, evaluated for many combinations at once. Nothing else of Python is run.

An expression is parsed by `ast` and checked against a list of what is allowed: numbers, text, the names of parameters,
arithmetic, comparisons, `in` a list, `and`, `or` and `not`. Whole numbers are exact up to 2^62, and larger ones are
refused. A division by zero has no value, and a comparison with it is false.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import InvalidData

Columns = Mapping[str, npt.NDArray[Any]]

_MAX_LENGTH = 4096
_LARGEST = 2.0**62
_MAX_EXPONENT = 64
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
# What users call the parts of Python that they may have expected.
_WORDS: dict[type[ast.AST], str] = {
    ast.Call: "a call",
    ast.Attribute: "an attribute",
    ast.Subscript: "an index",
    ast.Lambda: "a lambda",
    ast.IfExp: "if ... else",
    ast.ListComp: "a list comprehension",
    ast.GeneratorExp: "a generator",
    ast.NamedExpr: "an assignment",
    ast.JoinedStr: "an f-string",
    ast.Dict: "a dictionary",
    ast.Set: "a set",
    ast.Starred: "a star",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.Is: "is",
    ast.IsNot: "is not",
}


@dataclass(frozen=True)
class Expression:
    """An expression that was checked.

    Attributes:
        text: As the user wrote it.
        names: The parameters that it names.
    """

    text: str
    names: frozenset[str]
    _node: ast.expr

    @classmethod
    def of(cls, text: str, parameters: Collection[str]) -> Expression:
        """Check a text.

        Args:
            text: The expression.
            parameters: The names of all parameters.

        Raises:
            InvalidData: It is no expression, or has a part that is not allowed or a name that is not known.
        """
        return cls.of_node(text, parsed(text), parameters)

    @classmethod
    def of_node(cls, text: str, node: ast.expr, parameters: Collection[str]) -> Expression:
        """Check a part of an expression that was parsed already; see `of`."""
        try:
            for part in ast.walk(node):
                _check(text, part, parameters)
        except RecursionError:
            raise InvalidData(f"{text[:60]!r}... is nested too deeply") from None
        return cls(text, frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name)), node)

    def holds(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Return for which combinations it is true, [n].

        Args:
            columns: The values of each parameter, [n]; those of `names` are enough.

        Raises:
            InvalidData: A number becomes too large, or text meets a number.
        """
        length = len(next(iter(columns.values())))
        return np.broadcast_to(_truth(self.values(columns)), (length,))

    def values(self, columns: Columns) -> Any:
        """Return its value for each combination, [n], or one for all; errors are those of `holds`."""
        try:
            with np.errstate(all="ignore"):
                return _evaluated(self._node, columns)
        except InvalidData as error:
            raise InvalidData(f"{self.text!r}: {error}") from None
        except RecursionError:
            raise InvalidData(f"{self.text[:60]!r}... is nested too deeply") from None
        except TypeError:
            raise InvalidData(f"{self.text!r} mixes text and numbers") from None


def parsed(text: str) -> ast.expr:
    """Parse an expression.

    Raises:
        InvalidData: It is none, or too long.
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidData(f"{text[:60]!r}... has more than {_MAX_LENGTH} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of `1 is 1`, which is refused by name
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
        raise InvalidData(f"{text[:60]!r} is no expression: {reason}") from None


def _check(text: str, node: ast.AST, parameters: Collection[str]) -> None:
    if isinstance(node, ast.Name):
        if node.id not in parameters:
            raise InvalidData(f"{text!r} names {node.id!r}, which is no parameter")
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, bool | int | float | str):
            raise InvalidData(f"{text!r}: {node.value!r} is neither a number nor text")
        if isinstance(node.value, int) and abs(node.value) >= _LARGEST:
            raise InvalidData(f"{text!r}: a number is larger than 2^62")
    elif not isinstance(node, _ALLOWED):
        word = _WORDS.get(type(node), type(node).__name__)
        raise InvalidData(
            f"{text!r}: {word} is not allowed; there are numbers, text, parameters, + - * / // % **,"
            " comparisons, in, and, or, not"
        )


_ALLOWED = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp, *_ARITHMETIC, ast.Compare,
    *_COMPARISONS, ast.In, ast.NotIn, ast.List, ast.Tuple, ast.Load,
)  # fmt: skip


def _evaluated(node: ast.expr, columns: Columns) -> Any:
    if isinstance(node, ast.Constant):
        return int(node.value) if isinstance(node.value, bool) else node.value
    if isinstance(node, ast.Name):
        return columns[node.id]
    if isinstance(node, ast.BoolOp):
        truths = [_truth(_evaluated(value, columns)) for value in node.values]
        return (np.logical_and if isinstance(node.op, ast.And) else np.logical_or).reduce(np.broadcast_arrays(*truths))
    if isinstance(node, ast.UnaryOp):
        return _unary(node.op, _evaluated(node.operand, columns))
    if isinstance(node, ast.BinOp):
        return _arithmetic(node.op, _evaluated(node.left, columns), _evaluated(node.right, columns))
    if isinstance(node, ast.Compare):
        return _comparison(node, columns)
    raise InvalidData("a list belongs behind `in`")


def _unary(sign: ast.unaryop, value: Any) -> Any:
    if isinstance(sign, ast.Not):
        return np.logical_not(_truth(value))
    return -_number(value) if isinstance(sign, ast.USub) else _number(value)


def _arithmetic(sign: ast.operator, left: Any, right: Any) -> Any:
    """Compute in floating point first, which tells whether whole numbers stay exact."""
    left = _number(left)
    right = _number(right)
    compute = _ARITHMETIC[type(sign)]
    if isinstance(sign, ast.Pow) and np.any((right < 0) | (right > _MAX_EXPONENT)):
        raise InvalidData(f"an exponent must be from 0 to {_MAX_EXPONENT}")
    real = right.astype(np.float64)
    if isinstance(sign, _DIVISIONS):
        real = np.where(real == 0, np.nan, real)
    rough = compute(left.astype(np.float64), real)
    whole = left.dtype.kind == right.dtype.kind == "i" and not isinstance(sign, ast.Div)
    if not whole or np.isnan(rough).any():
        return rough
    if np.any(np.abs(rough) >= _LARGEST):
        raise InvalidData("a number becomes larger than 2^62")
    return compute(left, right)


def _comparison(node: ast.Compare, columns: Columns) -> Any:
    holds: Any = True
    left = _evaluated(node.left, columns)
    for sign, operand in zip(node.ops, node.comparators, strict=True):
        if isinstance(sign, ast.In | ast.NotIn):
            one = _is_in(left, operand, columns)
            one = np.logical_not(one) if isinstance(sign, ast.NotIn) else one
        else:
            right = _evaluated(operand, columns)
            one = _compared(_COMPARISONS[type(sign)], left, right)
            left = right
        holds = np.logical_and(holds, one)
    return holds


def _is_in(left: Any, operand: ast.expr, columns: Columns) -> Any:
    if not isinstance(operand, ast.List | ast.Tuple):
        raise InvalidData("`in` needs a list, such as [1, 2]")
    equal = [_compared(operator.eq, left, _evaluated(element, columns)) for element in operand.elts]
    return np.logical_or.reduce(np.broadcast_arrays(*equal)) if equal else False


def _compared(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> npt.NDArray[np.bool_]:
    """Compare; a comparison with what has no value is false."""
    result = np.asarray(compare(np.asarray(left), np.asarray(right)), dtype=bool)
    for side in map(np.asarray, (left, right)):
        if side.dtype.kind == "f":
            result = result & ~np.isnan(side)
    return result


def _number(value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind not in "if":
        raise TypeError
    return array


def _truth(value: Any) -> npt.NDArray[np.bool_]:
    array = np.asarray(value)
    if array.dtype.kind in "UO":
        return np.asarray(array != "", dtype=bool)
    return np.asarray((array != 0) & ~np.isnan(array) if array.dtype.kind == "f" else array != 0)
