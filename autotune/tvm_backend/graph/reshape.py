"""Let reshapes sink below elementwise operators, where most of them meet another and vanish.

Exporters put a reshape before and one after an activation. An operator behind a reshape is not fused to the product or
the convolution before it.
"""

from __future__ import annotations

from math import prod

from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, static_shape, values_of
from autotune.tvm_backend.graph.rewrite import Rewriter, rewrite_and_clean
from autotune.tvm_backend.types import Expr, IRModule, Var

_NAMES = """abs add ceil clip cos divide erf exp floor log maximum minimum multiply negative power round rsqrt
    sigmoid sign sin sqrt square subtract tanh nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.relu6 nn.selu nn.silu
    nn.softplus"""
ELEMENTWISE = frozenset(f"relax.{name}" for name in _NAMES.split())


def sink_reshapes(mod: IRModule) -> IRModule:
    """Rewrite `main` so that elementwise operators work on tensors as they were before a reshape."""
    return rewrite_and_clean(mod, _Sinker)


class _Sinker(Rewriter):
    """Keeps for each old variable a new one with the same elements in the same order, in its shape or in another."""

    local = ("_sources", "_shaped")

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._sources: dict[Var, Expr] = {}
        self._shaped: dict[Var, Expr] = {}

    def visit(self, var: Var, value: Expr) -> None:
        source = self._reshaped(value)
        if source is None:
            below = self._below(value)
            source = self.builder.emit(self.rebuild(value) if below is None else below, var.name)
        self._sources[var] = source

    def plain(self, var: Var) -> Expr:
        source = self._sources.get(var, var)
        shape = static_shape(var)
        if not shape or static_shape(source) == shape:
            return source
        if var not in self._shaped:
            self._shaped[var] = self.builder.emit(relax.op.reshape(source, shape))
        return self._shaped[var]

    def bind(self, var: Var, expr: Expr) -> None:
        self._sources[var] = self._shaped[var] = expr

    def _source(self, expr: Expr) -> Expr:
        return self._sources.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def _reshaped(self, value: Expr) -> Expr | None:
        """What a reshape of a variable has the elements of."""
        if op_name(value) not in ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten"):
            return None
        data = value.args[0]
        static = isinstance(data, relax.Var) and static_shape(data) and static_shape(value)
        return self._source(data) if static else None

    def _below(self, value: Expr) -> Expr | None:
        """An elementwise operator on what an operand was before it was reshaped; others follow it."""
        if op_name(value) not in ELEMENTWISE:
            return None
        tensors = [item for item in value.args if isinstance(item.ty, relax.TensorType)]
        shape = next((before for item in tensors if (before := self._shape_before(item))), None)
        if shape is None:
            return None
        args = [self._in_shape(item, static_shape(value), shape) for item in tensors]
        if any(item is None for item in args):
            return None
        return relax.Call(value.op, [*args, *value.args[len(tensors) :]], value.attrs, value.ty_args)

    def _shape_before(self, expr: Expr) -> tuple[int, ...] | None:
        """The shape that an operand had before it was reshaped, if it was."""
        shape = static_shape(self._source(expr))
        return shape if isinstance(expr, relax.Var) and shape != static_shape(expr) else None

    def _in_shape(self, expr: Expr, shape: tuple[int, ...], before: tuple[int, ...]) -> Expr | None:
        """An operand of an operator with result `shape` as one of the same operator with result `before`.

        None for one that is broadcast in a way that no reshape keeps.
        """
        if is_tensor_constant(expr):
            return _reshaped_constant(expr, shape, before)
        if static_shape(expr) != shape or prod(shape) != prod(before):
            return None
        source = self._source(expr)
        return source if static_shape(source) == before else self.builder.emit(relax.op.reshape(source, before))


def _reshaped_constant(constant: Expr, shape: tuple[int, ...], before: tuple[int, ...]) -> Expr | None:
    """A constant that is broadcast to `shape` as one that is broadcast to `before` in the same way.

    None where it is neither one number nor spans the last dimensions, unless the shapes differ in dimensions of 1 only.
    """
    value = values_of(constant)
    if value.size == 1:
        return relax.const(value.reshape(()), str(constant.ty.dtype))
    if _without_ones(shape) == _without_ones(before):
        wide = (1,) * (len(shape) - value.ndim) + value.shape
        sizes = (own for own, size in zip(wide, shape, strict=True) if size != 1)
        moved = value.reshape([1 if size == 1 else next(sizes) for size in before])
        return relax.const(moved, str(constant.ty.dtype))
    spanned = value.reshape(value.shape[next(axis for axis, size in enumerate(value.shape) if size > 1) :])
    ends = [end for end in range(len(before)) if prod(before[end:]) == value.size]
    if spanned.shape != shape[len(shape) - spanned.ndim :] or not ends:
        return None
    return relax.const(value.reshape(before[ends[-1] :]), str(constant.ty.dtype))


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]
