"""What the expressions of a Relax module are: shapes, types, operators, and which variables they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from autotune.tvm_backend.types import Binding, Call, Expr, Function, IRModule, Var

_FLOATS = ("float16", "float32", "float64")
_OF_NUMPY = frozenset((*_FLOATS, "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))))


def static_shape(expr: Expr) -> tuple[int, ...]:
    """Return the shape of a tensor expression; () if it is no tensor or has a symbolic dimension."""
    shape: Any = getattr(expr.ty, "shape", None)
    return tuple(map(int, shape.values)) if has_fixed_sizes(shape) else ()


def has_fixed_sizes(shape: Expr | None) -> bool:
    """Return whether a shape is known, and none of its dimensions is symbolic."""
    return isinstance(shape, relax.ShapeExpr) and all(isinstance(size, tvm.tirx.IntImm) for size in shape.values)


def fixed_bytes(expr: Expr) -> int:
    """Return the size of the tensors that an expression stands for; 0 for one whose size is not fixed."""
    kinds = expr.ty.fields if isinstance(expr.ty, relax.TupleType) else [expr.ty]
    return sum(_type_bytes(kind) for kind in kinds if isinstance(kind, relax.TensorType))


def _type_bytes(kind: Any) -> int:
    sizes = kind.shape.values if isinstance(kind.shape, relax.ShapeExpr) else [None]
    fixed = all(isinstance(size, tvm.tirx.IntImm) for size in sizes)
    return prod(map(int, sizes)) * int(tvm.DataType(str(kind.dtype)).itemsize) if fixed else 0


def float_dtype(expr: Expr) -> str | None:
    """Return the element type of a floating-point tensor expression; None for any other expression."""
    dtype = str(getattr(expr.ty, "dtype", ""))
    return dtype if dtype in _FLOATS else None


def is_tensor_constant(expr: Expr) -> bool:
    """Return whether an expression is a constant tensor. Immediate numbers and strings are not."""
    return isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType)


def values_of(constant: Expr) -> npt.NDArray[Any]:
    """Return the elements of a constant tensor: to be read only, and not copied where NumPy has their type."""
    if str(constant.ty.dtype) not in _OF_NUMPY:
        return cast(npt.NDArray[Any], constant.value.numpy())
    values = np.from_dlpack(constant.value)
    values.flags.writeable = False
    return values


def constant_of(values: npt.NDArray[Any], dtype: str) -> Expr:
    """Return a constant with these elements in row-major order. `relax.const` copies them twice.

    Args:
        values: Elements of any order in memory.
        dtype: Their type in TVM.
    """
    if dtype not in _OF_NUMPY or not values.size:
        return relax.const(np.ascontiguousarray(values), dtype)
    tensor = tvm.runtime.empty(values.shape, dtype)
    np.from_dlpack(tensor)[...] = values
    return relax.const(tensor)


def kernel_calls(prepared: IRModule) -> list[list[Call]]:
    """Return the calls of tensor programs of each entry of a prepared model, in order."""
    entries = [item for item in prepared.functions.values() if isinstance(item, relax.Function)]
    values = [[binding.value for binding in bindings_of(entry)] for entry in entries]
    return [[value for value in of_entry if op_name(value).startswith("relax.call_tir")] for of_entry in values]


def constant_places(prepared: IRModule) -> dict[str, tuple[int, ...]]:
    """Return the positions of the arguments of each tensor program that are constants in all of its calls, by name."""
    places = dict[str, set[int]]()
    for call in chain.from_iterable(kernel_calls(prepared)):
        constant = {place for place, item in enumerate(_arguments(call)) if is_tensor_constant(item)}
        name = str(call.args[0].name_hint)
        places[name] = places.get(name, constant) & constant
    return {name: tuple(sorted(constant)) for name, constant in places.items()}


def constant_bytes(prepared: IRModule) -> int:
    """Return the bytes of the constants that a run of a prepared model reads, at the entry that reads most."""
    return max((sum(map(bytes_of_constants, calls)) for calls in kernel_calls(prepared)), default=0)


def bytes_of_constants(call: Call) -> int:
    """Return the bytes that a call of a tensor program reads of constants of the model."""
    return sum(fixed_bytes(item) for item in _arguments(call) if is_tensor_constant(item))


def _arguments(call: Call) -> Sequence[Expr]:
    return call.args[1].fields if isinstance(call.args[1], relax.Tuple) else ()


def op_name(expr: Expr) -> str:
    """Return the name of the operator that an expression calls; an empty string if it calls none."""
    if not isinstance(expr, relax.Call):
        return ""
    return str(expr.op.name) if isinstance(expr.op, tvm.ir.Op) else ""


def called_program(expr: Expr) -> str:
    """Return the name of the tensor program that an expression calls; an empty string if it calls none."""
    called = getattr(expr, "op", None)
    return str(called.name_hint) if isinstance(called, tvm.ir.GlobalVar) else ""


def plain_convolution(value: Expr, operator: str = "relax.nn.conv2d", image: str = "HW", channels: str = "OI") -> bool:
    """Return whether a value is a floating-point convolution with constant weights and static shapes.

    Args:
        image: The axes of its layouts that follow batch and channels: NCHW, with weights in OIHW.
        channels: The axes of the layout of its weights before those.
    """
    if op_name(value) != operator or not is_tensor_constant(value.args[1]):
        return False
    attrs = value.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    dtypes = {float_dtype(item) for item in (*value.args, value)}
    typed = len(dtypes) == 1 and None not in dtypes and all(map(static_shape, (*value.args, value)))
    return typed and layouts == (f"NC{image}", f"{channels}{image}", f"NC{image}")


def leaves(expr: Expr) -> Iterator[Expr]:
    """Yield the variables and the constants that a bound value reads, each as often as it reads it."""
    if isinstance(expr, relax.Var) or is_tensor_constant(expr):
        yield expr
    elif isinstance(expr, relax.TupleGetItem):
        yield from leaves(expr.tuple_value)
    elif isinstance(expr, relax.Call | relax.Tuple):
        for item in expr.args if isinstance(expr, relax.Call) else expr.fields:
            yield from leaves(item)


def variables(expr: Expr) -> Iterator[Var]:
    """Yield the variables that a bound value reads, each as often as it reads it."""
    return (item for item in leaves(expr) if isinstance(item, relax.Var))


def bindings_of(function: Function) -> list[Binding]:
    """Return the bindings of all blocks of a function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def readers(function: Function) -> dict[Var, list[tuple[Var, Expr]]]:
    """Return what reads each variable of a function, as variables and their values, each as often as it reads it."""
    made: dict[Var, list[tuple[Var, Expr]]] = {}
    for item in bindings_of(function):
        for var in variables(item.value):
            made.setdefault(var, []).append((item.var, item.value))
    return made


def results_of(function: Function) -> set[Var]:
    """Return the variables that a function returns, by themselves or in a tuple."""
    values = {item.var: item.value for item in bindings_of(function)}
    returned = set(variables(function.body.body))
    tuples = [values[var] for var in returned if isinstance(values.get(var), relax.Tuple)]
    return returned | {var for item in tuples for var in variables(item)}


def has_branches(function: Function) -> bool:
    """Return whether parts of a function run only at times, or are functions."""
    values = [binding.value for binding in bindings_of(function)]
    return any(isinstance(value, relax.If | relax.Function | relax.SeqExpr) for value in values)
