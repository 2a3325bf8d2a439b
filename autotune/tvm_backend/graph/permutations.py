"""Let permutations of axes sink below elementwise operators, where they meet their inverse and vanish.

A network whose convolutions have their channels second, and whose products and normalisations have them last, changes
between the two in every block, and adds what came before in either. An operator behind a permutation is not fused to
the product before it. A permutation sinks only where its inverse is below it: anywhere else nothing would be gained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import (
    bindings_of,
    is_tensor_constant,
    op_name,
    static_shape,
    values_of,
    variables,
)
from autotune.tvm_backend.graph.reshape import ELEMENTWISE
from autotune.tvm_backend.graph.rewrite import Rewriter, rewrite_and_clean
from autotune.tvm_backend.types import Expr, IRModule, Var

Axes = tuple[int, ...]
TO_FIRST = (0, 3, 1, 2)  # channels from the last axis of four to the second
TO_LAST = (0, 2, 3, 1)  # and back
_PERMUTATION = "relax.permute_dims"
_DEQUANTISATION = "relax.dequantize"
_QUANTISATIONS = frozenset({_DEQUANTISATION, "relax.quantize"})
_REDUCTIONS = frozenset(f"relax.{name}" for name in ("max", "mean", "min", "sum"))


def sink_permutations(mod: IRModule, *, ties: bool = True) -> IRModule:
    """Rewrite `main` so that elementwise operators work on tensors as they were before a permutation.

    Args:
        ties: Whether an operator does so of whose operands no more are permuted than others would have to be.
    """
    return rewrite_and_clean(mod, lambda module: _Sinker(module, ties))


def keeps_order(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Return whether a permutation of the axes of a tensor leaves its elements in order: it moves none but axes of one.

    Args:
        axes: None of them is negative.
    """
    moved = [axis for axis in axes if shape[axis] > 1]
    return moved == sorted(moved)


class _Sinker(Rewriter):
    """Keeps for each old variable a new expression, and the axes by which that becomes it; none if it is the same."""

    local = ("_sources", "_permuted")

    def __init__(self, mod: IRModule, ties: bool) -> None:
        super().__init__(mod)
        self._ties = ties
        self._values: dict[Var, Expr] = {}
        self._sources: dict[Var, tuple[Expr, Axes]] = {}
        self._permuted: dict[tuple[Var, Axes], Expr] = {}
        self._above_inverse: dict[Axes, set[Var]] = {}

    def visit(self, var: Var, value: Expr) -> None:
        self._values[var] = value
        source = self._composed(var, value) or self._below(var, value)
        if source is None:
            source = (self.builder.emit(self.rebuild(value), var.name), ())
        self._sources[var] = source

    def plain(self, var: Var) -> Expr:
        source, axes = self._source(var)
        return self._permute(var, axes, var.name) if axes else source

    def bind(self, var: Var, expr: Expr) -> None:
        self._sources[var] = (expr, ())

    def _composed(self, var: Var, value: Expr) -> tuple[Expr, Axes] | None:
        """What a permutation of a variable is a permutation of. One of axes of extent 1 is a reshape."""
        shape = static_shape(value)
        static = shape and all(shape)  # to a reshape, a size of 0 is that of the operand
        if op_name(value) != _PERMUTATION or not isinstance(value.args[0], relax.Var) or not static:
            return None
        source, axes = self._source(value.args[0])
        composed = _after(axes, axes_of(value))
        if _is_identity(composed):
            return source, ()
        if _moves_nothing(static_shape(source), composed):
            return self.builder.emit(relax.op.reshape(source, shape), var.name), ()
        return source, composed

    def _source(self, var: Var) -> tuple[Expr, Axes]:
        return self._sources.get(var, (var, ()))

    def _below(self, var: Var, value: Expr) -> tuple[Expr, Axes] | None:
        """An operator on what an operand was before it was permuted, as the others are then."""
        tensors = _tensors(value)
        permuted = [self._source(item)[1] for item in tensors if isinstance(item, relax.Var)]
        axes = next(filter(None, permuted), ())
        others = len(permuted) - permuted.count(axes)
        fewer = permuted.count(axes) > others or (self._ties and permuted.count(axes) == others)
        if not axes or not fewer or not _sinks(value, axes) or not self._vanishes(var, axes):
            return None
        operands = [self._before(item, axes) for item in tensors]
        rest = value.args[len(tensors) :]
        if op_name(value) in _REDUCTIONS:
            make = getattr(relax.op, op_name(value).removeprefix("relax."))
            made = make(operands[0], [axes[int(axis)] for axis in value.attrs.axis], keepdims=True)
        else:
            made = relax.Call(value.op, [*operands, *rest], value.attrs, value.ty_args)
        return self.builder.emit(made, var.name), axes

    def _before(self, operand: Expr, axes: Axes) -> Expr:
        """An operand as it is before a permutation by some axes."""
        if not isinstance(operand, relax.Var):
            return _constant_before(operand, axes)
        source, own = self._source(operand)
        return source if own == axes else self._permute(operand, _after(own, _inverse(axes)))

    def _permute(self, var: Var, axes: Axes, name: str = "") -> Expr:
        """Permute the source of a variable. Of a dequantised one the bytes are permuted."""
        source, _ = self._source(var)
        if (source, axes) not in self._permuted:
            self._permuted[source, axes] = self._permute_anew(var, axes, name)
        return self._permuted[source, axes]

    def _permute_anew(self, var: Var, axes: Axes, name: str) -> Expr:
        source, own = self._source(var)
        value: Expr = self._values.get(var)
        if op_name(value) == _DEQUANTISATION and own and self._source(value.args[0])[1] == own:
            bytes_ = self._permute(value.args[0], axes)
            return self.builder.emit(relax.Call(value.op, [bytes_, *value.args[1:]], value.attrs), name)
        return source if _is_identity(axes) else self.builder.emit(relax.op.permute_dims(source, axes), name)

    def _vanishes(self, var: Var, axes: Axes) -> bool:
        """Whether a permutation meets its inverse below a variable."""
        if axes not in self._above_inverse:
            self._above_inverse[axes] = self._all_above_inverse(axes)
        return var in self._above_inverse[axes]

    def _all_above_inverse(self, axes: Axes) -> set[Var]:
        """The variables below which a permutation meets its inverse, whichever of them it permutes."""
        above: set[Var] = set()
        for item in reversed(bindings_of(self.function)):
            if self._ends(item.value, axes) or (item.var in above and _sinks(item.value, axes)):
                above.update(variables(item.value))
        return above

    def _ends(self, value: Expr, axes: Axes) -> bool:
        """Whether a value is the inverse of a permutation. One of a tensor of another rank is not."""
        if op_name(value) != _PERMUTATION or len(static_shape(value)) != len(axes):
            return False
        return _is_identity(_after(axes, axes_of(value)))


def axes_of(permutation: Expr) -> Axes:
    """Return the axes of a `permute_dims`, which reverses them where it names none."""
    axes = permutation.attrs.axes
    rank = len(static_shape(permutation))
    return tuple(int(axis) % rank for axis in axes) if axes is not None else tuple(range(rank))[::-1]


def _tensors(value: Expr) -> list[Expr]:
    """The operands of an elementwise operator. The scales of a quantisation are none."""
    name = op_name(value)
    if name in _QUANTISATIONS or name in _REDUCTIONS:
        return list(value.args[:1])
    return [item for item in value.args if isinstance(item.ty, relax.TensorType)] if name in ELEMENTWISE else []


def _sinks(value: Expr, axes: Axes) -> bool:
    """Whether a permutation may come after an operator in place of before it."""
    name = op_name(value)
    rank = len(axes)
    if len(static_shape(value)) != rank:
        return False
    if name in _QUANTISATIONS:
        return all(is_tensor_constant(item) and values_of(item).size == 1 for item in value.args[1:])
    if name in _REDUCTIONS:
        return value.attrs.axis is not None and bool(value.attrs.keepdims)
    tensors = _tensors(value)
    return bool(tensors) and all(is_tensor_constant(item) or len(static_shape(item)) == rank for item in tensors)


def _constant_before(constant: Expr, axes: Axes) -> Expr:
    """A constant that is broadcast to a permuted tensor as one that is broadcast to the tensor itself."""
    value = values_of(constant)
    if value.ndim == 0:
        return constant
    wide = value.reshape((1,) * (len(axes) - value.ndim) + value.shape)
    return relax.const(np.ascontiguousarray(wide.transpose(_inverse(axes))), str(constant.ty.dtype))


def _after(first: Axes, second: Sequence[int]) -> Axes:
    """The axes of two permutations, one after the other."""
    return tuple(first[axis] for axis in second) if first else tuple(second)


def _moves_nothing(shape: Sequence[int], axes: Axes) -> bool:
    """Whether the elements of a tensor are in the same order before and after a permutation."""
    wide = [axis for axis in axes if shape[axis] != 1]
    return wide == sorted(wide)


def _inverse(axes: Axes) -> Axes:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def _is_identity(axes: Axes) -> bool:
    return axes == tuple(range(len(axes)))
