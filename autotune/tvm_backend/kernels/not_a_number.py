"""Let the larger and the smaller of two floats be not-a-number where one of them is, as NumPy and ONNX have it.

LLVM and CUDA lack such an operator. TVM makes a comparison and a choice of `max(a, b)` for LLVM: `a > b ? a : b`, which
CPUs have as one instruction. It is `b` where either is not-a-number. So a constant stands first: that costs nothing. Of
two values one is compared with itself as well, which is one instruction more.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.programs import over_programs
from autotune.tvm_backend.types import IRModule, PrimExpr, PrimFunc, Stmt

_FLOATS = ("float16", "float32", "float64")
_BYTES = ("int8", "uint8")
_EXTREMES = (tirx.Max, tirx.Min)


def keep_not_a_number(module: IRModule) -> IRModule:
    """Return a module in which maxima and minima of floats keep what is not a number.

    What is stored as a byte stays as it is: no byte is not-a-number.

    Args:
        module: What TVM's passes for lowering return.
    """
    return over_programs(module, _rewritten)


def _rewritten(function: PrimFunc) -> PrimFunc:
    return function.with_body(tvm_ffi.structural_map(function.body, ((tirx.BufferStore, _store),)))


def _store(store: Stmt) -> Stmt:
    if str(store.buffer.dtype) in _BYTES:
        return store
    value = tvm_ffi.structural_map(store.value, tuple((kind, _kept) for kind in _EXTREMES))
    return store if value.same_as(store.value) else tirx.BufferStore(store.buffer, value, store.indices)


def _kept(extreme: PrimExpr) -> PrimExpr:
    """A maximum or a minimum that is not-a-number if an operand is."""
    make = type(extreme)
    if str(extreme.ty.dtype).partition("x")[0] not in _FLOATS or _is_number(extreme.a):
        return extreme
    if _is_number(extreme.b):
        return make(extreme.b, extreme.a)
    first, second = (extreme.b, extreme.a) if _is_read(extreme.b) and not _is_read(extreme.a) else (extreme.a, extreme.b)
    if _is_read(first):
        return _chosen(make, first, second)
    variable = tirx.Var("either", first.ty)
    return tirx.Let(variable, first, _chosen(make, variable, second))


def _chosen(make: type, first: PrimExpr, second: PrimExpr) -> PrimExpr:
    return tirx.Select(first == first, make(first, second), first)


def _is_read(value: PrimExpr) -> bool:
    """Whether a value is at hand, so that it costs nothing to name it twice."""
    return isinstance(value, tirx.Var | tvm.ir.TensorLoad)


def _is_number(value: PrimExpr) -> bool:
    """Whether a value is always a number: a constant, or made of an integer."""
    if isinstance(value, tirx.Broadcast):
        return _is_number(value.value)
    if isinstance(value, tirx.Cast):
        return not str(value.value.ty.dtype).startswith("float") or _is_number(value.value)
    return isinstance(value, tirx.FloatImm) and not math.isnan(float(value.value))
