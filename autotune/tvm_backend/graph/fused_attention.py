"""Attention on GPUs becomes one kernel: softmax(queries times keys, scaled, plus a mask) times values.

The kernel (`cuda/attention_kernel.py`) reads its operands as projections write them, so that the permutations before
and behind it vanish. Its scores are in float32, and so is the mask, as it was before that was rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan

from tvm import relax

from autotune.tvm_backend.cuda.attention_kernel import ELEMENTS, AttentionShape, RowPart
from autotune.tvm_backend.expressions import (
    is_tensor_constant,
    op_name,
    readers,
    static_shape,
    values_of,
    variables,
)
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.types import Call, Expr, IRModule, Target

_FLOAT = "float32"
_CONVERSION = "relax.astype"
_PERMUTATION = "relax.permute_dims"
_BY_HEADS = (0, 2, 1, 3)  # from (batch, rows, heads, size) to (batch, heads, rows, size), and back
_LAST = 2  # axis of rows
_KEYS_BY_ROWS = (0, 3, 1, 2)  # from (batch, heads, size, rows) to (batch, rows, heads, size)


def fuse_attention(mod: IRModule, target: Target) -> IRModule:
    """Rewrite `main` so that attention for which there is a kernel is one.

    Args:
        mod: A module before LegalizeOps, whose products are in fp16 or bf16 with results in float32.
    """
    return rewrite_and_clean(mod, lambda module: _Joiner(module, target))


@dataclass(frozen=True)
class _Written:
    """Attention as exporters write it. What is added to the scores is None where nothing is."""

    queries: Expr  # (batch, heads, rows, size)
    keys: Expr  # (batch, heads, size, rows)
    values: Expr  # (batch, heads, rows, size)
    scale: float
    added: Expr | None

    def shape(self) -> AttentionShape | None:
        """Its shapes; None where these are no heads of one element type."""
        operands = (self.queries, self.keys, self.values)
        queries, keys, values = map(static_shape, operands)
        if not len(queries) == len(keys) == len(values) == 4:
            return None
        batch, heads, rows, size = queries
        steps = values[2]
        added = () if self.added is None else static_shape(self.added)
        dtypes = {_dtype(item) for item in operands}
        if (keys, values) != ((batch, heads, size, steps), (batch, heads, steps, size)) or len(dtypes) > 1:
            return None
        if not dtypes <= set(ELEMENTS) or len(added) > 4 or (self.added is not None and not added):
            return None
        filled = (*[1] * (4 - len(added)), *added) if added else ()
        return AttentionShape(batch, heads, rows, steps, size, self.scale, filled)


class _Joiner(PlainRewriter):
    def __init__(self, mod: IRModule, target: Target) -> None:
        super().__init__(mod)
        self._target = target
        self._readers = readers(self.function)
        self._outputs = set(variables(self.function.body.body))

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) == _PERMUTATION:
            return self._undone(self.leaf(value.args[0]), value.attrs.axes)
        written = self._written(value)
        shape = None if written is None else written.shape()
        if written is None or shape is None or not shape.fits(self._target):
            return None
        dtype = str(value.ty.dtype)
        queries, values = (self._permuted(item, _BY_HEADS) for item in (written.queries, written.values))
        keys = self._permuted(written.keys, _KEYS_BY_ROWS)
        rows = [self._rows(item) for item in (queries, keys, values)]
        added = [] if written.added is None else [self._in_float32(written.added, shape.added)]
        program = replace(shape, parts=tuple(part for _, part in rows)).program(dtype, self._target)
        result = (shape.batch, shape.queries, shape.heads, shape.size)
        joined = self.kernel(program, "attention", [*(tensor for tensor, _ in rows), *added], result, dtype)
        return relax.op.permute_dims(joined, _BY_HEADS)

    def _written(self, value: Expr) -> _Written | None:
        """What a value is if it is the rounded result of an attention, of which nothing else reads a part."""
        product = self._only_read(value.args[0], "relax.matmul") if op_name(value) == _CONVERSION else None
        if product is None:
            return None
        weights, values = product.args
        softmax = self._only_read(weights, "relax.nn.softmax")
        if softmax is None or int(softmax.attrs.axis) not in (-1, len(static_shape(softmax)) - 1):
            return None
        for scores, added in self._sums(softmax.args[0]):
            inner, scale = self._scaled(scores)
            if inner is not None and isfinite(scale):
                queries, keys = inner.args
                return _Written(queries, keys, values, scale, added)
        return None

    def _sums(self, scores: Expr) -> Sequence[tuple[Expr, Expr | None]]:
        """What scores may be the sum of: scaled products, and what is added to them."""
        total = self._only_read(scores, "relax.add")
        if total is None:
            return [(scores, None)]
        left, right = total.args
        return [(left, right), (right, left)]

    def _scaled(self, scores: Expr) -> tuple[Call | None, float]:
        """The product that scores are a multiple of, and the factor."""
        product = self._only_read(scores, "relax.matmul")
        value = self._only_read(scores, "relax.multiply", "relax.divide")
        if value is None:
            return product, 1.0
        inner, operand = value.args
        factor = self._unrounded(operand)
        if not is_tensor_constant(factor) or values_of(factor).size != 1:
            return None, 1.0
        number = float(values_of(factor).item())
        product = self._only_read(inner, "relax.matmul")
        return product, number if op_name(value) == "relax.multiply" else 1.0 / (number or nan)

    def _only_read(self, operand: Expr, *names: str) -> Call | None:
        """The value of a variable that is read once, before conversions, if one of these operators computes it."""
        while isinstance(operand, relax.Var) and operand not in self._outputs and len(self._readers[operand]) == 1:
            value: Expr = self.values.get(operand)
            if op_name(value) != _CONVERSION:
                return value if op_name(value) in names else None
            operand = value.args[0]
        return None

    def _permuted(self, operand: Expr, axes: Sequence[int]) -> Expr:
        """An operand with its axes in another order."""
        operand = self.leaf(operand)
        undone = self._undone(operand, axes)
        return self.emit(relax.op.permute_dims(operand, list(axes))) if undone is None else undone

    def _undone(self, operand: Expr, axes: Sequence[int] | None) -> Expr | None:
        """What a new expression is a permutation of, converted as it is, if another permutation undoes that one."""
        made: Expr = self.builder.lookup_binding(operand) if isinstance(operand, relax.Var) else None
        if op_name(made) == _CONVERSION:
            inner = self._undone(made.args[0], axes)
            return None if inner is None else self.emit(relax.op.astype(inner, made.attrs.dtype))
        if axes is None or op_name(made) != _PERMUTATION or made.attrs.axes is None:
            return None
        before = [int(axis) % len(axes) for axis in made.attrs.axes]
        is_undone = [before[int(axis) % len(axes)] for axis in axes] == list(range(len(axes)))
        return made.args[0] if is_undone else None

    def _rows(self, heads: Expr) -> tuple[Expr, RowPart]:
        """The tensor (batch, rows, width) that an operand (batch, rows, heads, size) is a part of, and which part."""
        batch, rows, count, size = static_shape(heads)
        made: Expr = self.builder.lookup_binding(heads) if isinstance(heads, relax.Var) else None
        flat = made.args[0] if op_name(made) == "relax.reshape" else None
        if flat is None or static_shape(flat) != (batch, rows, count * size):
            flat = self.emit(relax.op.reshape(heads, (batch, rows, count * size)))
        whole, begin = self._cut_from(flat)
        part = RowPart(static_shape(whole)[-1], begin)
        return (whole, part) if part.is_aligned else (flat, RowPart(count * size))

    def _cut_from(self, rows: Expr) -> tuple[Expr, int]:
        """What a tensor of three axes is cut from along the last one, and where it begins there."""
        made: Expr = self.builder.lookup_binding(rows) if isinstance(rows, relax.Var) else None
        if op_name(made) != "relax.strided_slice":
            return rows, 0
        whole, axes, begins, _, *strides = made.args
        numbers = [int(item.value) for items in (axes, begins, *strides) for item in items]
        if len(axes) != 1 or numbers[0] != _LAST or numbers[1] < 0 or numbers[2:] not in ([], [1]):
            return rows, 0
        return whole, numbers[1]

    def _in_float32(self, added: Expr, shape: Sequence[int]) -> Expr:
        """What is added to the scores, of four axes."""
        exact = self.leaf(self._unrounded(added))
        if _dtype(exact) != _FLOAT:
            exact = self.emit(relax.op.astype(exact, _FLOAT))
        return exact if static_shape(exact) == tuple(shape) else self.emit(relax.op.reshape(exact, shape))

    def _unrounded(self, operand: Expr) -> Expr:
        """An operand as it was in float32, if that was rounded."""
        value: Expr = self.values.get(operand) if isinstance(operand, relax.Var) else None
        if op_name(value) == _CONVERSION and _dtype(value.args[0]) == _FLOAT:
            return value.args[0]
        return operand if value is None or not is_tensor_constant(value) else value


def _dtype(expr: Expr) -> str:
    return str(expr.ty.dtype)
