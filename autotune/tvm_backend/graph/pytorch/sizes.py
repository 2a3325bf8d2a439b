"""Sizes in an exported program: numbers, or expressions of open dimensions, which are read and not evaluated as code.

torch writes an expression as calls of SymPy's constructors, such as `Mul(Integer(2), Symbol('s77', positive=True))`,
and its loader hands it to Python's `eval`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping

_SIGNS = {"Add": "+", "Mul": "*"}


def evaluate(text: str, sizes: Mapping[str, int]) -> int | str:
    """Return the value of an expression, or a short form of it where an open dimension in it has no size.

    Raises:
        ValueError: It is more than sums and products of open dimensions.
    """
    return _value(_parsed(text), sizes)


def dimensions(text: str) -> Iterator[str]:
    """Yield the names of the open dimensions in an expression.

    Raises:
        ValueError: As for `evaluate`.
    """
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol":
            yield str(_value(node, {}))


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no size") from error


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int | str:
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or not tree.args:
        raise ValueError(f"{ast.unparse(tree)!r} is no size")
    kind = tree.func.id
    if kind in _SIGNS:
        parts = [_value(part, sizes) for part in tree.args]
        numbers = [part for part in parts if isinstance(part, int)]
        if len(numbers) < len(parts):
            return _SIGNS[kind].join(map(str, parts))
        return math.prod(numbers) if kind == "Mul" else sum(numbers)
    argument = tree.args[0]
    literal = argument.value if isinstance(argument, ast.Constant) else None
    if kind == "Integer" and isinstance(literal, int):
        return literal
    if kind == "Symbol" and isinstance(literal, str):
        return sizes.get(literal, literal)
    raise ValueError(f"{ast.unparse(tree)!r} is no sum or product of open dimensions")
