"""Formulas inside of conditions and of other formulas, written so that TVM meets each of their variables once.

A formula is a chain of variables. TVM simplifies a condition before it lowers what the condition is for, and meets the
variables in it again, with a simplified value: it refuses a variable that has two values. The same holds for a formula
in the arguments of another one. So all formulas of such a value become one chain around the whole value.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.programs import replaced
from autotune.tvm_backend.types import PrimExpr, PrimFunc, Stmt
from autotune.tvm_backend.vector_math import registry

_GUARD = "prim.if_then_else"


def write_around(function: PrimFunc) -> PrimFunc:
    """Return a lowered program in which no stored value has a formula in a condition or in another formula."""
    body = tvm_ffi.structural_map(function.body, ((tirx.BufferStore, _store),))
    return function if body.same_as(function.body) else function.with_body(body)


def _store(store: Stmt) -> Stmt:
    if not _has_inner(store.value):
        return store
    return tirx.BufferStore(store.buffer, _around(store.value), store.indices)


def _has_inner(value: PrimExpr) -> bool:
    """Whether a value has a formula in a condition or in a formula; False if it has variables of its own."""
    inside = [item for part in _of(value, tirx.Select, tvm.ir.Call) for item in _inside(part)]
    return any(map(_has_formula, inside)) and not _of(value, tirx.Let)


def _inside(part: PrimExpr) -> list[PrimExpr]:
    """What of a part of a value must have no formula in it."""
    if isinstance(part, tirx.Select):
        return [part.condition]
    if _is_guard(part):
        return [part.args[0]]
    return list(part.args) if _is_formula(part) else []


def _is_guard(call: PrimExpr) -> bool:
    return getattr(call.op, "name", "") == _GUARD


def _has_formula(value: PrimExpr) -> bool:
    return any(map(_is_formula, _of(value, tvm.ir.Call)))


def _is_formula(part: PrimExpr) -> bool:
    return isinstance(part, tvm.ir.Call) and registry.steps(part) is not None


def _of(value: PrimExpr, *kinds: type) -> list[PrimExpr]:
    """The parts of a value that are of a kind."""
    met: list[PrimExpr] = []

    def look(part: PrimExpr) -> PrimExpr:
        met.append(part)
        return part

    tvm_ffi.structural_map(value, tuple((kind, look) for kind in kinds))
    return met


def _around(value: PrimExpr) -> PrimExpr:
    """Return a value with its formulas around it; those that a guard allows are around what the guard allows."""
    hidden: list[tuple[PrimExpr, PrimExpr]] = []
    chain = _Chain()

    def hide(call: PrimExpr) -> PrimExpr:
        if not _is_guard(call):
            return call
        condition, *branches = call.args
        names = [tirx.Var("guarded", branch.ty) for branch in branches]
        hidden.extend(zip(names, branches, strict=True))
        return tvm.ir.Call(call.op, [condition, *names], call.attrs, call.ty_args, call.span, call.ty)

    result = chain.around(_mapped(_mapped(value, hide), chain.add))
    outer = None if chain.reads([name for name, _ in hidden]) else chain
    for name, branch in reversed(hidden):
        own = _Chain(outer)
        result = replaced(result, name, own.around(_mapped(branch, own.add)))
    return result


class _Chain:
    """The steps of formulas, each formula once; `outer` is a chain around this one."""

    def __init__(self, outer: _Chain | None = None) -> None:
        self._steps: list[tuple[PrimExpr, PrimExpr]] = []
        self._results: list[tuple[PrimExpr, PrimExpr]] = list(outer._results) if outer else []

    def add(self, call: PrimExpr) -> PrimExpr:
        """Return the result of a formula, which is in the chain from now on; another call stays as it is."""
        for other, variable in self._results:
            if tvm_ffi.structural_equal(other, call):
                return variable
        ours = registry.steps(call)
        if ours is None:
            return call
        f, result = ours
        self._results.append((call, f.let(result)))
        self._steps.extend(f.bound)
        return self._results[-1][1]

    def reads(self, names: list[PrimExpr]) -> bool:
        """Return whether a step reads one of these variables: what stands for it knows no later step."""
        return any(
            variable.same_as(name) for _, step in self._steps for variable in _of(step, tirx.Var) for name in names
        )

    def around(self, value: PrimExpr) -> PrimExpr:
        """Return a value with the steps around it."""
        for variable, step in reversed(self._steps):
            value = tirx.Let(variable, step, value)
        return value


def _mapped(value: PrimExpr, replace: Callable[[PrimExpr], PrimExpr]) -> PrimExpr:
    """Return a value with its calls replaced, the innermost first."""
    return tvm_ffi.structural_map(value, ((tvm.ir.Call, replace),))
