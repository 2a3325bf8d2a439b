"""Find the tensor that an expression is a view of: what permutes, reshapes and cuts moves no elements.

NumPy says what such operators do to strides, on an array that nothing reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, static_shape, values_of
from autotune.tvm_backend.types import Expr, Var

_CONVERSION = "relax.astype"
_FLOATS = ("bfloat16", "float16", "float32", "float64")
_RESHAPES = ("relax.reshape", "relax.squeeze", "relax.expand_dims")
_Array = npt.NDArray[np.int8]  # whose strides count elements
_Step = Callable[[_Array], _Array]
Values = Mapping[Var, Expr]  # of variables


@dataclass(frozen=True)
class StridedView:
    """An expression as a view of a tensor.

    Attributes:
        source: The tensor. The expression is a multiple of its elements, and may be converted.
        factor: The number that they are multiplied by.
        strides: Elements between neighbours along each axis of the expression.
        offset: Elements before the first one.
    """

    source: Expr
    factor: float
    strides: tuple[int, ...]
    offset: int


def views(expr: Expr, values: Values) -> Iterator[StridedView]:
    """Yield the views that an expression is of tensors that lie ever further back. The first is of itself."""
    steps: list[_Step] = []
    factor = 1.0
    while static_shape(expr):
        whole: _Array = np.empty(static_shape(expr), np.int8)
        view = whole
        for step in steps:
            view = step(view)
        if not np.may_share_memory(view, whole):  # elements had to be moved
            return
        offset = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        yield StridedView(expr, factor, tuple(view.strides), offset)
        value: Expr = values.get(expr) if isinstance(expr, relax.Var) else None
        multiple = multiple_of(value, values)
        earlier = _step_from(value, values) if multiple is None else (multiple[0], _unchanged)
        if earlier is None:
            return
        expr, step = earlier
        steps.insert(0, step)
        factor *= 1.0 if multiple is None else multiple[1]


def is_float(expr: Expr) -> bool:
    """Return whether an expression is a tensor of floating-point numbers, of 16 bits or more."""
    return str(getattr(expr.ty, "dtype", "")) in _FLOATS


def converts_floats(value: Expr) -> bool:
    """Return whether a value is a conversion from one type of such numbers to another one."""
    return op_name(value) == _CONVERSION and is_float(value) and is_float(value.args[0])


def multiple_of(value: Expr, values: Values) -> tuple[Expr, float] | None:
    """Return what a value is a multiple of by a number, and the number; None for any other value."""
    if value is None or not is_float(value):
        return None
    if op_name(value) == "relax.divide":
        number = number_of(value.args[1], values)
        return None if not number else (value.args[0], 1.0 / number)
    if op_name(value) == "relax.multiply":
        for operand, other in (value.args, reversed(value.args)):
            number = number_of(other, values)
            if number is not None:
                return operand, number
    return None


def number_of(operand: Expr, values: Values) -> float | None:
    """Return the number that a constant of one element is, as it was before conversions; None for anything else."""
    value: Expr = values.get(operand) if isinstance(operand, relax.Var) else operand
    if op_name(value) == _CONVERSION and is_float(value):
        return number_of(value.args[0], values)
    is_number = value is not None and is_tensor_constant(value) and static_shape(value) in ((), (1,))
    return float(values_of(value).item()) if is_number else None


def _step_from(value: Expr, values: Values) -> tuple[Expr, _Step] | None:
    """What a value is a view of in one step, and what the step does to an array; None where it is none."""
    if isinstance(value, relax.TupleGetItem):
        split: Expr = values.get(value.tuple_value) if isinstance(value.tuple_value, relax.Var) else None
        return (
            (split.args[0], partial(_part, split.attrs, int(value.index))) if op_name(split) == "relax.split" else None
        )
    if converts_floats(value):
        return value.args[0], _unchanged
    if op_name(value) == "relax.permute_dims":
        return value.args[0], partial(_permuted, value.attrs.axes)
    if op_name(value) == "relax.strided_slice":
        return value.args[0], partial(_cut, value.args[1:])
    if op_name(value) in _RESHAPES and static_shape(value):
        return value.args[0], partial(_reshaped, static_shape(value))
    return None


def _unchanged(array: _Array) -> _Array:
    return array


def _reshaped(shape: tuple[int, ...], array: _Array) -> _Array:
    return array.reshape(shape)


def _permuted(axes: Any, array: _Array) -> _Array:
    return array.transpose(None if axes is None else [int(axis) for axis in axes])


def _cut(operands: Any, array: _Array) -> _Array:
    axes, *bounds = ([int(item.value) for item in operand] for operand in operands)
    cut = [slice(None)] * array.ndim
    for axis, *numbers in zip(axes, *bounds, strict=True):
        cut[axis] = slice(*numbers)
    return array[tuple(cut)]


def _part(split: Any, index: int, array: _Array) -> _Array:
    counted = split.indices_or_sections
    axis = int(split.axis)
    extent = array.shape[axis]
    if hasattr(counted, "value"):  # parts of one size, but for the last one
        size = -(-extent // int(counted))
        places = list(range(size, extent, size))
    else:
        places = [int(item) for item in counted]
    return np.split(array, places, axis=axis)[index]
