"""Attention on GPUs becomes one kernel: softmax(queries times keys, scaled, plus a mask) times values.

The kernel (`cuda/attention_kernel.py`) reads its operands as projections write them, so that the permutations before
and behind it vanish, and multiplies scores by the numbers that queries and keys are multiplied by. Its scores are in
float32, and so is the mask, as it was before that was rounded. Where PyTorch guards a softmax against NaN, queries
without keys have zeros, and NaN among the operands stays NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod

import numpy as np
from tvm import relax

from autotune.tvm_backend.cuda.attention_kernel import ELEMENTS, AttentionShape, RowPart
from autotune.tvm_backend.expressions import (
    constant_of,
    is_tensor_constant,
    op_name,
    readers,
    results_of,
    static_shape,
    values_of,
)
from autotune.tvm_backend.graph.permutations import keeps_order
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.graph.strided_views import StridedView, converts_floats, multiple_of, number_of, views
from autotune.tvm_backend.types import Call, Expr, IRModule, Target

_FLOAT = "float32"
_CONVERSION = "relax.astype"
_PERMUTATION = "relax.permute_dims"
_RANK = 4
_NO_WEIGHT = -1e4  # a score so far below others has none
_ABSORBS = -1e30  # the sum of this and a score is this
_BY_HEADS = (0, 2, 1, 3)  # from (batch, rows, heads, size) to (batch, heads, rows, size), and back
_KEYS_BY_ROWS = (0, 3, 1, 2)  # from (batch, heads, size, rows) to (batch, rows, heads, size)


def fuse_attention(mod: IRModule, target: Target) -> IRModule:
    """Rewrite `main` so that attention for which there is a kernel is one.

    Args:
        mod: A module before LegalizeOps, whose products are in fp16 or bf16 with results in float32.
    """
    return rewrite_and_clean(mod, lambda module: _Joiner(module, target))


@dataclass(frozen=True)
class _Operand:
    """Queries, keys or values.

    Attributes:
        axes: Those of the expression that are (batch, rows, heads, size), in this order.
    """

    expr: Expr
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch, rows, heads and size; empty where the expression has other axes."""
        shape = static_shape(self.expr)
        return tuple(shape[axis] for axis in self.axes) if len(shape) == len(self.axes) else ()

    def part(self, view: StridedView) -> RowPart | None:
        """Which part of the rows of a tensor it is, as a view of that; None where it is no such part."""
        batch, rows, heads, size = self.shape
        of_batch, of_row, of_head, of_element = (view.strides[axis] for axis in self.axes)
        part = RowPart(prod(static_shape(view.source)) // (batch * rows), view.offset)
        is_part = (
            prod(static_shape(view.source)) == batch * rows * part.width
            and part.offset + heads * size <= part.width
            and (size == 1 or of_element == 1)
            and (heads == 1 or of_head == size)
            and (rows == 1 or of_row == part.width)
            and (batch == 1 or of_batch == rows * part.width)
        )
        return part if is_part and part.is_aligned else None


@dataclass(frozen=True)
class _Rows:
    """What an operand is a part and a multiple of: a new tensor (batch, rows, width)."""

    tensor: Expr
    part: RowPart
    factor: float = 1.0


@dataclass(frozen=True)
class _Written:
    """Attention as exporters write it.

    Attributes:
        scale: What scores are multiplied by.
        added: What is added to the scores.
        zeros: Whether weights that are no numbers become zeros.
    """

    queries: _Operand
    keys: _Operand
    values: _Operand
    scale: float
    added: tuple[Expr, ...]
    zeros: bool

    def shape(self) -> AttentionShape | None:
        """Its shapes; None where these are no heads."""
        if not all(item.shape for item in (self.queries, self.keys, self.values)):
            return None
        batch, rows, heads, size = self.queries.shape
        steps = self.keys.shape[1]
        shapes = [static_shape(item) for item in self.added]
        if {self.keys.shape, self.values.shape} != {(batch, steps, heads, size)}:
            return None
        if any(not shape or len(shape) > _RANK for shape in shapes):
            return None
        added = np.broadcast_shapes((1,) * _RANK, *shapes) if shapes else ()
        return AttentionShape(batch, heads, rows, steps, size, self.scale, added, zeros=self.zeros)


class _Joiner(PlainRewriter):
    local = ("values",)

    def __init__(self, mod: IRModule, target: Target) -> None:
        super().__init__(mod)
        self._target = target
        self._readers = readers(self.function)
        self._outputs = results_of(self.function)

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) == _PERMUTATION:
            return self._undone(self.leaf(value.args[0]), value.attrs.axes)
        written = self._written(value)
        shape = None if written is None else written.shape()
        if written is None or shape is None or not shape.fits(self._target):
            return None
        dtype = _dtype(value)
        queries, keys = (self._rows(item, dtype) for item in (written.queries, written.keys))
        values = self._rows(written.values, dtype, is_scaled=False)
        added = [self._sum(written.added, shape.added)] if written.added else []
        scale = shape.scale * queries.factor * keys.factor
        shape = replace(shape, scale=scale, parts=(queries.part, keys.part, values.part))
        if not shape.fits(self._target):  # of wide rows there may be too many
            return None
        program = shape.program(dtype, self._target)
        operands = [queries.tensor, keys.tensor, values.tensor, *added]
        result = (shape.batch, shape.queries, shape.heads, shape.size)
        return relax.op.permute_dims(self.kernel(program, "attention", operands, result, dtype), _BY_HEADS)

    def _written(self, value: Expr) -> _Written | None:
        """What a value is if it is the rounded result of an attention, of which nothing else reads a part."""
        product = self._only_read(value.args[0], "relax.matmul") if op_name(value) == _CONVERSION else None
        if (
            product is None
            or {_dtype(item) for item in product.args} - {_dtype(value)}
            or _dtype(value) not in ELEMENTS
        ):
            return None
        weights, values = product.args
        softmax, zeros = self._softmax(weights)
        if softmax is None or int(softmax.attrs.axis) not in (-1, len(static_shape(softmax)) - 1):
            return None
        for scores, added in self._sums(softmax.args[0]):
            inner, scale = self._scaled(scores)
            if inner is not None and isfinite(scale):
                queries = _Operand(inner.args[0], _BY_HEADS)
                keys = _Operand(inner.args[1], _KEYS_BY_ROWS)
                return _Written(queries, keys, _Operand(values, _BY_HEADS), scale, added, zeros)
        return None

    def _softmax(self, weights: Expr) -> tuple[Call | None, bool]:
        """The softmax that weights are, and whether they are zeros where it has no numbers, as PyTorch exports it."""
        chosen = self._only_read(weights, "relax.where")
        if chosen is None:
            return self._only_read(weights, "relax.nn.softmax"), False
        condition, zero, kept = chosen.args
        made = self.bound(condition)
        is_guard = op_name(made) == "relax.isnan" and made.args[0].same_as(kept) and self._number(zero) == 0.0
        value: Expr = self.values.get(kept) if is_guard and len(self._readers[kept]) == 2 else None
        return (value, True) if op_name(value) == "relax.nn.softmax" else (None, False)

    def _number(self, operand: Expr) -> float | None:
        return number_of(operand, self.values)

    def _sums(self, scores: Expr) -> Iterator[tuple[Expr, tuple[Expr, ...]]]:
        """Yield what scores may be the sum of: scaled products, and what is added to them."""
        total = self._only_read(scores, "relax.add")
        for inner, *added in [(scores,)] if total is None else [tuple(total.args), tuple(reversed(total.args))]:
            chosen = self._only_read(inner, "relax.where")
            masked = None if chosen is None else self._masked(chosen, _ABSORBS if added else _NO_WEIGHT)
            yield (inner, tuple(added)) if masked is None else (masked[0], (masked[1], *added))

    def _masked(self, chosen: Call, most: float) -> tuple[Expr, Expr] | None:
        """Scores of which a constant chooses some, and what may be added to them in its place.

        That is so where others have no weight, for their number is `most` or less, and each query has a key.
        """
        constant, *operands = chosen.args
        condition = self.values.get(constant) if isinstance(constant, relax.Var) else constant
        numbers = [self._number(item) for item in operands]
        if condition is None or not is_tensor_constant(condition) or numbers.count(None) != 1:
            return None
        is_first = numbers[1] is None
        keys = values_of(condition).astype(bool) != is_first
        number = numbers[not is_first]
        if number is None or not number <= most or not keys.shape or not keys.any(axis=-1).all():
            return None
        added = constant_of(np.where(keys, np.float32(0), np.float32(number)), _FLOAT)
        return operands[is_first], added

    def _scaled(self, scores: Expr) -> tuple[Call | None, float]:
        """The product that scores are a multiple of, and the factor."""
        multiple = multiple_of(self._only_read(scores, "relax.multiply", "relax.divide"), self.values)
        inner, factor = (scores, 1.0) if multiple is None else multiple
        return self._only_read(inner, "relax.matmul"), factor

    def _only_read(self, operand: Expr, *names: str) -> Call | None:
        """The value of a variable that is read once, before conversions, if one of these operators computes it."""
        while isinstance(operand, relax.Var) and operand not in self._outputs and len(self._readers[operand]) == 1:
            value: Expr = self.values.get(operand)
            if not converts_floats(value):
                return value if op_name(value) in names else None
            operand = value.args[0]
        return None

    def _undone(self, operand: Expr, axes: Sequence[int] | None) -> Expr | None:
        """A permutation of a new expression, converted as that is, if it undoes one before it but for axes of one."""
        made: Expr = self.builder.lookup_binding(operand) if isinstance(operand, relax.Var) else None
        if op_name(made) == _CONVERSION:
            inner = self._undone(made.args[0], axes)
            return None if inner is None else self.emit(relax.op.astype(inner, made.attrs.dtype))
        if axes is None or op_name(made) != _PERMUTATION or made.attrs.axes is None:
            return None
        shape = static_shape(made.args[0])
        before = [int(axis) % len(axes) for axis in made.attrs.axes]
        composed = [before[int(axis) % len(axes)] for axis in axes]
        is_undone = bool(shape) and keeps_order(shape, composed)
        return self._reshaped(made.args[0], [shape[axis] for axis in composed]) if is_undone else None

    def _rows(self, operand: _Operand, dtype: str, *, is_scaled: bool = True) -> _Rows:
        """The tensor that lies furthest back of those of which an operand is a part; else a tensor of its own.

        Args:
            is_scaled: Whether it may be a multiple of the tensor.
        """
        batch, rows, heads, size = operand.shape
        possible = [
            (view, part)
            for view in views(operand.expr, self.values)
            if (part := operand.part(view)) is not None and isfinite(view.factor) and (is_scaled or view.factor == 1)
        ]
        if not possible:
            own = self.emit(relax.op.permute_dims(self.leaf(operand.expr), operand.axes))
            return _Rows(self._reshaped(own, (batch, rows, heads * size)), RowPart(heads * size))
        view, part = possible[-1]
        tensor = self._converted(self.leaf(view.source), dtype)
        return _Rows(self._reshaped(tensor, (batch, rows, part.width)), part, view.factor)

    def _sum(self, added: Sequence[Expr], shape: Sequence[int]) -> Expr:
        """The sum of what is added to the scores, in float32 and of four axes."""
        first, *others = (self._in_float32(item) for item in added)
        for other in others:
            first = self.emit(relax.op.add(first, other))
        return self._reshaped(first, shape)

    def _in_float32(self, added: Expr) -> Expr:
        """What is added to the scores as it was before it was rounded."""
        value = self.bound(added)
        is_rounded = op_name(value) == _CONVERSION and _dtype(value.args[0]) == _FLOAT
        return self._converted(self.leaf(value.args[0] if is_rounded else added), _FLOAT)

    def _converted(self, tensor: Expr, dtype: str) -> Expr:
        return tensor if _dtype(tensor) == dtype else self.emit(relax.op.astype(tensor, dtype))

    def _reshaped(self, tensor: Expr, shape: Sequence[int]) -> Expr:
        return tensor if static_shape(tensor) == tuple(shape) else self.emit(relax.op.reshape(tensor, shape))


def _dtype(expr: Expr) -> str:
    return str(expr.ty.dtype)
