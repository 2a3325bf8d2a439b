"""Fold per-channel scales into the weights of the preceding convolution, so that batch normalisation costs one add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import (
    bindings_of,
    float_dtype,
    is_tensor_constant,
    op_name,
    plain_convolution,
    static_shape,
    values_of,
    variables,
)
from autotune.tvm_backend.graph.rewrite import Rewriter, rewrite
from autotune.tvm_backend.types import Expr, Function, IRModule, Var

Array = npt.NDArray[np.float64]


def fold_scales(mod: IRModule) -> IRModule:
    """Merge each chain of additions and multiplications by per-channel constants in `main`.

    A chain after a convolution with constant weights becomes scaled weights and one addition. Any other chain becomes
    one multiplication and one addition. A chain ends at a value that is used more than once.

    Args:
        mod: A module whose batch normalisations are decomposed and whose constants are folded.

    Returns:
        The rewritten module, or `mod` if `main` cannot be rewritten.
    """
    return rewrite(mod, _Folder)


@dataclass(frozen=True)
class _Affine:
    """A value `base * scale + shift` that is not emitted yet."""

    base: Expr  # a new variable or a call of a convolution, of shape (N, C, H, W)
    scale: Array  # of shape () or (C, 1, 1)
    shift: Array  # of shape () or (C, 1, 1)


_ONE = np.ones(())
_ZERO = np.zeros(())

# The new (scale, shift) of a value after an operator: _AFTER for `value op constant`, _BEFORE for `constant op value`.
_Step = Callable[[Array, Array, Array], tuple[Array, Array]]
_AFTER: dict[str, _Step] = {
    "relax.add": lambda scale, shift, const: (scale, shift + const),
    "relax.subtract": lambda scale, shift, const: (scale, shift - const),
    "relax.multiply": lambda scale, shift, const: (scale * const, shift * const),
    "relax.divide": lambda scale, shift, const: (scale / const, shift / const),
}
_BEFORE: dict[str, _Step] = {
    "relax.add": _AFTER["relax.add"],
    "relax.multiply": _AFTER["relax.multiply"],
    "relax.subtract": lambda scale, shift, const: (-scale, const - shift),
}


class _Folder(Rewriter):
    """Delays convolutions and chains of affine operators until something else needs their value."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._uses = _count_uses(self.function)
        self._made: dict[Var, Expr] = {}
        self._pending: dict[Var, _Affine] = {}

    def visit(self, var: Var, value: Expr) -> None:
        pending = _Affine(self.rebuild(value), _ONE, _ZERO) if plain_convolution(value) else self._step(value)
        if pending is None:
            self._made[var] = self.builder.emit(self.rebuild(value), var.name)
        else:
            self._pending[var] = pending

    def plain(self, var: Var) -> Expr:
        if var in self._pending:
            self._made[var] = self._emit(self._pending.pop(var), var.name)
        return self._made.get(var, var)

    def bind(self, var: Var, expr: Expr) -> None:
        self._made[var] = expr

    def _step(self, value: Expr) -> _Affine | None:
        """Return the value as an affine function, joined to the chain that ends in its operand; None if it is none."""
        affine = _affine_operands(value)
        if affine is None:
            return None
        step, operand, const = affine
        inner = isinstance(operand, relax.DataflowVar) and self._uses[operand] == 1
        joined = inner and operand in self._pending
        chain = self._pending[operand] if joined else _Affine(operand, _ONE, _ZERO)
        with np.errstate(all="ignore"):
            scale, shift = step(chain.scale, chain.shift, const)
        if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
            return None
        if joined:
            del self._pending[operand]
        return _Affine(chain.base if joined else self.plain(operand), scale, shift)

    def _emit(self, chain: _Affine, name: str) -> Expr:
        expr = chain.base
        scale = chain.scale
        if isinstance(expr, relax.Call):
            expr = self.builder.emit(_scale_weights(expr, scale), name)
            scale = _ONE
        if (scale != 1).any():
            expr = self.builder.emit(relax.op.multiply(expr, _constant(scale, expr)), name)
        if (chain.shift != 0).any():
            expr = self.builder.emit(relax.op.add(expr, _constant(chain.shift, expr)), name)
        return expr


def _affine_operands(value: Expr) -> tuple[_Step, Expr, Array] | None:
    """Split an arithmetic call into its step, its variable (N, C, H, W) and its constant, () or (C, 1, 1).

    Returns None for any other value.
    """
    name = op_name(value)
    if name not in _AFTER:
        return None
    left, right = value.args
    table, operand, other = (_AFTER, left, right) if is_tensor_constant(right) else (_BEFORE, right, left)
    if name not in table or not isinstance(operand, relax.Var) or not is_tensor_constant(other):
        return None
    shape = static_shape(operand)
    if len(shape) != 4 or shape != static_shape(value) or float_dtype(operand) is None:
        return None
    const = _per_channel(values_of(other), shape[1])
    return None if const is None else (table[name], operand, const)


def _per_channel(value: npt.NDArray[Any], channels: int) -> Array | None:
    """Return a per-channel constant as float64 of shape () or (C, 1, 1); None for any other constant."""
    if value.size == 1:
        return value.astype(np.float64).reshape(())
    if value.shape[-3:] != (channels, 1, 1) or value.size != channels:
        return None
    return value.astype(np.float64).reshape(channels, 1, 1)


def _scale_weights(call: Expr, scale: Array) -> Expr:
    """Return the convolution with its weights (O, I, KH, KW) multiplied by a scale of shape () or (O, 1, 1)."""
    if (scale == 1).all():
        return call
    data, weight = call.args
    scaled = values_of(weight).astype(np.float64) * scale.reshape(-1, 1, 1, 1)
    return relax.Call(call.op, [data, _as_constant(scaled, weight)], call.attrs, call.ty_args)


def _constant(value: Array, like: Expr) -> Expr:
    """Return a constant of the element type of `like`. (C, 1, 1) becomes (1, C, 1, 1)."""
    return _as_constant(value if value.ndim == 0 else value[None], like)


def _as_constant(value: Array, like: Expr) -> Expr:
    dtype = str(like.ty.dtype)
    return relax.const(value.astype(dtype), dtype)


def _count_uses(function: Function) -> Counter[Var]:
    expressions = [*(binding.value for binding in bindings_of(function)), function.body.body]
    return Counter(var for expr in expressions for var in variables(expr))
