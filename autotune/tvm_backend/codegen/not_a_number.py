"""Not-a-number stays: maxima, minima and signs of floats are what NumPy and ONNX say.

TVM makes `a > b ? a : b` of a maximum, which is one instruction of a CPU, and `b` where either is not-a-number. So a
constant stands first, which costs nothing. Of two values, the first is compared with itself as well. In a reduction
that is the new value: the comparison waits for no step before it.

The largest value of a softmax is left as it is: the exponentials are not-a-number already.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.operators.rows import LARGEST
from autotune.tvm_backend.types import PrimExpr, PrimFunc, Stmt
from autotune.tvm_backend.vector_math.formula import constant_of

_BYTES = ("int8", "uint8")  # of which none is not-a-number
_OF_SOFTMAX = ("T_softmax_maxelem", LARGEST)


def keep_not_a_number(function: PrimFunc) -> PrimFunc:
    """Return a lowered program in which maxima, minima and signs of floats are not-a-number where an operand is."""
    return function.with_body(tvm_ffi.structural_map(function.body, ((tirx.BufferStore, _store),)))


def _store(store: Stmt) -> Stmt:
    buffer = store.buffer
    if str(buffer.dtype) in _BYTES or str(buffer.name).startswith(_OF_SOFTMAX):
        return store
    maps = ((tirx.Max, _extreme), (tirx.Min, _extreme), (tirx.Select, _sign))
    value = tvm_ffi.structural_map(store.value, maps)
    return store if value.same_as(store.value) else tirx.BufferStore(buffer, value, store.indices)


def _extreme(extreme: PrimExpr) -> PrimExpr:
    """A maximum or a minimum of floats that is not-a-number if an operand is."""
    make = type(extreme)
    first = extreme.a
    second = extreme.b
    if not _is_float(extreme) or _is_number(first):
        return extreme
    if _is_number(second):
        return make(second, first)
    if isinstance(second, tirx.Var | tvm.ir.TensorLoad):
        return _or_itself(second, make(second, first))
    variable = tirx.Var("operand", second.ty)
    return tirx.Let(variable, second, _or_itself(variable, make(variable, first)))


def _sign(choice: PrimExpr) -> PrimExpr:
    """A sign that is not-a-number if its operand is: `0 < x ? 1 : x < 0 ? -1 : 0`; another choice as it is."""
    inner = choice.false_value
    if not isinstance(inner, tirx.Select) or not isinstance(inner.condition, tirx.LT) or not _is_float(choice):
        return choice
    operand = inner.condition.a
    is_positive = tirx.LT(inner.condition.b, operand)
    numbers = [constant_of(item) for item in (choice.true_value, inner.true_value, inner.false_value)]
    if numbers != [1, -1, 0] or not tvm_ffi.structural_equal(choice.condition, is_positive):
        return choice
    return _or_itself(operand, choice)


def _or_itself(value: PrimExpr, number: PrimExpr) -> PrimExpr:
    """A number, or the value that it is made of where that is none."""
    return tirx.Select(value == value, number, value)


def _is_float(value: PrimExpr) -> bool:
    return str(value.ty.dtype).startswith("float")


def _is_number(value: PrimExpr) -> bool:
    """Whether a value is always a number: a constant, or made of an integer."""
    if isinstance(value, tirx.Broadcast):
        return _is_number(value.value)
    if isinstance(value, tirx.Cast):
        return not _is_float(value.value) or _is_number(value.value)
    number = constant_of(value)
    return number is not None and not math.isnan(number)
