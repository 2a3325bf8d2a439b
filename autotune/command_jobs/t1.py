"""The format T1, in which Kernel Tuner and others write down what is tuned: parameters, and conditions on them.

(KernelTuner/kernel_tuner, schema/T1/1.0.0.) It writes values and conditions as expressions of Python. Of values these
are taken: literals, `range`, `list` of one, sums of lists, and `[... for name in ...]` with arithmetic on the name.
Conditions are those of `parameter_expressions.py`. Everything else is refused by name, and Python evaluates nothing.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from autotune import schema
from autotune.command_jobs.parameter_expressions import Expression, parsed
from autotune.errors import InvalidData

_MAX_VALUES = 10_000
_SHOWN = 60  # characters of what is refused
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "uint": int, "float": float, "bool": bool, "string": str}


@dataclass(frozen=True)
class _Parameter:
    Name: str
    Type: str
    Values: str


@dataclass(frozen=True)
class _Condition:
    Expression: str
    Parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class _ConfigurationSpace:
    TuningParameters: tuple[_Parameter, ...]
    Conditions: tuple[_Condition, ...] = ()


@dataclass(frozen=True)
class _Document:
    ConfigurationSpace: _ConfigurationSpace = field()


def configuration_space(document: Mapping[str, Any]) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    """Return the values of each parameter, and the conditions, of a document in T1.

    Raises:
        InvalidData: It is none, or says something that is not supported. The message says which parameter it is.
    """
    space = schema.convert(_Document, document).ConfigurationSpace
    parameters: dict[str, tuple[Any, ...]] = {}
    for place, parameter in enumerate(space.TuningParameters):
        keys = ("ConfigurationSpace", "TuningParameters", place)
        if parameter.Name in parameters:
            raise InvalidData(f"there are two parameters {parameter.Name[:_SHOWN]!r}", keys)
        if parameter.Type not in _CASTS:
            shown = f"{parameter.Name[:_SHOWN]!r} is of the unknown type {parameter.Type[:_SHOWN]!r}"
            raise InvalidData(shown, keys)
        try:
            values = _values(parsed(parameter.Values))
            parameters[parameter.Name] = tuple(_cast(value, parameter.Type) for value in values)
        except RecursionError:
            raise InvalidData(f"the values of {parameter.Name[:_SHOWN]!r} are nested too deeply", keys) from None
        except InvalidData as error:
            raise InvalidData(f"the values of {parameter.Name[:_SHOWN]!r}: {error}", keys) from None
    return parameters, tuple(condition.Expression for condition in space.Conditions)


def _cast(value: Any, kind: str) -> Any:
    """Return a value as its type says. Text is not read as a number, and of a number no part is lost."""
    if kind == "string" or not isinstance(value, str):
        with contextlib.suppress(ValueError, OverflowError):  # such as NaN as a whole number
            cast = _CASTS[kind](value)
            if kind == "string" or cast == value:
                return cast
    raise InvalidData(f"{str(value)[:_SHOWN]!r} is no {kind}")


def _values(node: ast.expr) -> Sequence[Any]:
    if isinstance(node, ast.List | ast.Tuple):
        return [_constant(element) for element in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _limited([*_values(node.left), *_values(node.right)])
    if isinstance(node, ast.ListComp):
        return _comprehension(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "list" and len(node.args) == 1:
            return _values(node.args[0])
        if node.func.id == "range" and 1 <= len(node.args) <= 3:
            return _limited(range(*(_whole(argument) for argument in node.args)))
    raise InvalidData(f"{ast.unparse(node)[:60]!r} is not supported; write a list such as [1, 2, 4], or range(1, 9)")


def _comprehension(node: ast.ListComp) -> Sequence[Any]:
    """Evaluate `[... for name in values]` for all values at once."""
    loop = node.generators[0]
    if len(node.generators) > 1 or loop.ifs or loop.is_async or not isinstance(loop.target, ast.Name):
        raise InvalidData("a comprehension has one loop and no condition")
    name = loop.target.id
    values = np.array(_values(loop.iter))
    expression = Expression.of_node(ast.unparse(node.elt), node.elt, {name})
    return cast("list[Any]", np.broadcast_to(expression.values({name: values}), values.shape).tolist())


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | str):
        return node.value
    value = Expression.of_node(ast.unparse(node)[:60], node, ()).values({})
    return value.item() if isinstance(value, np.ndarray | np.generic) else value


def _whole(node: ast.expr) -> int:
    value = _constant(node)
    if not isinstance(value, int):
        raise InvalidData(f"range takes whole numbers, not {str(value)[:_SHOWN]!r}")
    return value


def _limited(values: Sequence[Any]) -> Sequence[Any]:
    if len(values) > _MAX_VALUES:
        raise InvalidData(f"there are more than {_MAX_VALUES}")
    return values
