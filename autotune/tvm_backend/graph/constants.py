"""What every module is cleaned of: operators on constants, and parts of concatenations without elements."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import (
    bindings_of,
    constant_of,
    is_tensor_constant,
    op_name,
    static_shape,
    values_of,
)
from autotune.tvm_backend.graph.rewrite import PlainRewriter, is_rewritable, rewrite, rewrite_and_clean
from autotune.tvm_backend.types import Binding, Expr, Function, IRModule, Var

# What is left on constants of batch normalisation, and of bounds that may be NaN. Each is correctly rounded, by NumPy
# and by TVM.
_BY_NUMPY: dict[str, Callable[..., npt.NDArray[Any]]] = {
    "relax.add": lambda _call, x, y: x + y,
    "relax.subtract": lambda _call, x, y: x - y,
    "relax.multiply": lambda _call, x, y: x * y,
    "relax.divide": lambda _call, x, y: x / y,
    "relax.sqrt": lambda _call, x: np.sqrt(x),
    "relax.isnan": lambda _call, x: np.isnan(x),
    "relax.where": lambda _call, condition, x, y: np.asarray(np.where(condition, x, y)),
    "relax.permute_dims": lambda call, x: np.transpose(x, call.attrs.axes and [int(axis) for axis in call.attrs.axes]),
    "relax.expand_dims": lambda call, x: np.expand_dims(x, tuple(int(axis) for axis in call.attrs.axis)),
}


def fold_constants(mod: IRModule, but: Collection[str] = ()) -> IRModule:
    """Rewrite `main` as TVM's FoldConstant does.

    That pass lowers each operator of a function to find out whether it can fold it, which takes as long as lowering the
    function. So it is given the operators on constants alone.

    Args:
        mod: A module before LegalizeOps.
        but: Names of operators that stay.
    """
    if not is_rewritable(mod):
        return relax.transform.FoldConstant()(mod)
    bindings = _constant_bindings(mod["main"], but)
    if not bindings:
        return mod
    folded = _Constants(mod).fold(bindings)
    return rewrite(mod, lambda module: _Folder(module, folded))


def _constant_bindings(function: Function, but: Collection[str]) -> list[Binding]:
    """Return the bindings of calls that depend on constants alone, in order."""
    constant: dict[Var, Binding] = {}

    def is_constant(expr: Expr) -> bool:
        if isinstance(expr, relax.Tuple):
            return all(map(is_constant, expr.fields))
        return expr in constant if isinstance(expr, relax.Var) else True

    blocks = [block for block in function.body.blocks if isinstance(block, relax.DataflowBlock)]
    for binding in (binding for block in blocks for binding in block.bindings):
        is_call = isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.Call)
        if is_call and op_name(binding.value) not in but and all(map(is_constant, binding.value.args)):
            constant[binding.var] = binding
    return list(constant.values())


def _computed(bindings: list[Binding]) -> dict[Var, Expr]:
    """Return the values that NumPy computes to the bit as TVM does. TVM compiles each operator, which takes 0.1 s."""
    values: dict[Var, Expr] = {}
    for item in bindings:
        operator = _BY_NUMPY.get(op_name(item.value))
        operands = [values.get(arg, arg) if isinstance(arg, relax.Var) else arg for arg in item.value.args]
        if operator is not None and all(is_tensor_constant(operand) for operand in operands):
            arrays = [values_of(operand) for operand in operands]
            dtypes = {str(array.dtype) for array in arrays} - {"bool"}
            if dtypes in ({"float32"}, {"float64"}):
                value = np.asarray(operator(item.value, *arrays))
                values[item.var] = constant_of(value, str(value.dtype))
    return values


class _Constants(PlainRewriter):
    """Makes a function of the operators on constants."""

    def fold(self, bindings: list[Binding]) -> dict[Var, Expr]:
        """Return the values of the variables that NumPy or TVM can compute."""
        computed = _computed(bindings)
        rest = [item for item in bindings if item.var not in computed]
        for item in bindings:
            if item.var in computed:
                self.bind(item.var, computed[item.var])
        return {**computed, **(self._by_tvm(rest) if rest else {})}

    def _by_tvm(self, bindings: list[Binding]) -> dict[Var, Expr]:
        with self.builder.function("main", []):
            with self.builder.dataflow():
                for item in bindings:
                    self.bind(item.var, self.builder.emit_output(self.rebuild(item.value)))
            self.builder.emit_func_output(relax.Tuple([self.plain(item.var) for item in bindings]))
        body = relax.transform.FoldConstant()(self.builder.finalize())["main"].body
        bound = {item.var: item.value for block in body.blocks for item in block.bindings}
        values = [bound.get(item, item) if isinstance(item, relax.Var) else item for item in body.body.fields]
        pairs = zip(bindings, values, strict=True)
        return {item.var: value for item, value in pairs if not isinstance(value, relax.Call)}


class _Folder(PlainRewriter):
    """Puts values in the place of the operators that have them."""

    def __init__(self, mod: IRModule, folded: dict[Var, Expr]) -> None:
        super().__init__(mod)
        self._folded = folded

    def visit(self, var: Var, value: Expr) -> None:
        result = self._folded.get(var)
        if result is None:
            super().visit(var, value)
        else:
            self.bind(var, self.builder.emit(result, var.name) if isinstance(result, relax.Tuple) else result)

    def replace(self, value: Expr) -> None:
        """Leave what has no value yet as it is."""


def drop_empty_parts(mod: IRModule) -> IRModule:
    """Rewrite `main` so that no concatenation has a part without elements beside others, if one has.

    TVM cannot load a library that holds such a constant, and cannot compile a concatenation of one that is computed.

    Args:
        mod: A module as it was imported.
    """
    if all(len(_parts(binding.value)) == len(_kept(binding.value)) for binding in bindings_of(mod["main"])):
        return mod
    return rewrite_and_clean(mod, _Dropper)


class _Dropper(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        kept = _kept(value)
        if len(kept) == len(_parts(value)):
            return None
        joined = [self.leaf(part) for part in kept]
        return joined[0] if len(joined) == 1 else relax.op.concat(joined, value.attrs.axis)


def _parts(value: Expr) -> list[Expr]:
    """Return what a value concatenates; nothing if it is no concatenation."""
    return list(value.args[0].fields) if op_name(value) == "relax.concat" else []


def _kept(value: Expr) -> list[Expr]:
    """Return the parts with elements, or all if none has any."""
    pieces = _parts(value)
    return [part for part in pieces if prod(static_shape(part)) > 0] or pieces
