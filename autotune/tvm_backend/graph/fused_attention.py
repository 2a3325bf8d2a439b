"""Attention on GPUs becomes one kernel: softmax(queries times keys, scaled, plus a mask) times values.

The kernel (`cuda/attention_kernel.py`) reads its operands as projections write them, so that the permutations before
and behind it vanish, and multiplies scores by all numbers that operands are multiplied by. Its scores are in float32,
and so is the mask, as it was before that was rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan, prod

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
_IN_ORDER = (0, 1, 2, 3)
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
    """Queries, keys or values: a tensor of which they are a multiple, and the order of its axes.

    Attributes:
        axes: Those that are (batch, rows, heads, size), in this order.
    """

    source: Expr
    axes: tuple[int, ...]
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch, rows, heads and size; empty where the tensor has other axes."""
        shape = static_shape(self.source)
        return tuple(shape[axis] for axis in self.axes) if len(shape) == len(self.axes) else ()


@dataclass(frozen=True)
class _Written:
    """Attention as exporters write it.

    Attributes:
        scale: What scores are multiplied by, but for the factors of operands.
        added: What is added to the scores; None where nothing is.
        zeros: Whether weights that are no numbers become zeros.
    """

    queries: _Operand
    keys: _Operand
    values: _Operand
    scale: float
    added: Expr | None
    zeros: bool

    def shape(self) -> AttentionShape | None:
        """Its shapes; None where these are no heads."""
        operands = (self.queries, self.keys, self.values)
        if not all(item.shape for item in operands):
            return None
        batch, rows, heads, size = self.queries.shape
        steps = self.keys.shape[1]
        added = () if self.added is None else static_shape(self.added)
        if {self.keys.shape, self.values.shape} != {(batch, steps, heads, size)}:
            return None
        if len(added) > len(_IN_ORDER) or (self.added is not None and not added):
            return None
        scale = self.scale * prod(item.factor for item in operands)
        filled = (*[1] * (len(_IN_ORDER) - len(added)), *added) if added else ()
        shape = AttentionShape(batch, heads, rows, steps, size, scale, filled, zeros=self.zeros)
        return shape if isfinite(scale) and self.values.factor == 1.0 else None


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
        rows = [self._rows(item, dtype) for item in (written.queries, written.keys, written.values)]
        added = [] if written.added is None else [self._in_float32(written.added, shape.added)]
        program = replace(shape, parts=tuple(part for _, part in rows)).program(dtype, self._target)
        result = (shape.batch, shape.queries, shape.heads, shape.size)
        joined = self.kernel(program, "attention", [*(tensor for tensor, _ in rows), *added], result, dtype)
        return relax.op.permute_dims(joined, _BY_HEADS)

    def _written(self, value: Expr) -> _Written | None:
        """What a value is if it is the rounded result of an attention, of which nothing else reads a part."""
        product = self._only_read(value.args[0], "relax.matmul") if op_name(value) == _CONVERSION else None
        if (
            product is None
            or {_dtype(item) for item in product.args} - {_dtype(value)}
            or _dtype(value) not in ELEMENTS
        ):
            return None
        softmax, zeros = self._softmax(product.args[0])
        if softmax is None or int(softmax.attrs.axis) not in (-1, len(static_shape(softmax)) - 1):
            return None
        for scores, added in self._sums(softmax.args[0]):
            inner, scale = self._scaled(scores)
            if inner is not None:
                queries = self._peeled(inner.args[0], _BY_HEADS)
                keys = self._peeled(inner.args[1], _KEYS_BY_ROWS)
                values = self._peeled(product.args[1], _BY_HEADS)
                return _Written(queries, keys, values, scale, added, zeros)
        return None

    def _softmax(self, weights: Expr) -> tuple[Call | None, bool]:
        """The softmax that weights are, and whether they are zeros where it has no numbers, as PyTorch exports it."""
        softmax = self._only_read(weights, "relax.nn.softmax")
        chosen = self._only_read(weights, "relax.where")
        if chosen is None:
            return softmax, False
        condition, zero, kept = chosen.args
        made: Expr = self.values.get(condition) if isinstance(condition, relax.Var) else None
        is_guard = op_name(made) == "relax.isnan" and made.args[0].same_as(kept) and self._number(zero) == 0.0
        value: Expr = self.values.get(kept) if is_guard and len(self._readers[kept]) == 2 else None
        return (value, True) if op_name(value) == "relax.nn.softmax" else (None, False)

    def _sums(self, scores: Expr) -> Sequence[tuple[Expr, Expr | None]]:
        """What scores may be the sum of: scaled products, and what is added to them."""
        total = self._only_read(scores, "relax.add")
        if total is None:
            return [(scores, None)]
        left, right = total.args
        return [(left, right), (right, left)]

    def _scaled(self, scores: Expr) -> tuple[Call | None, float]:
        """The product that scores are a multiple of, and the factor."""
        value = self._only_read(scores, "relax.multiply", "relax.divide")
        multiple = None if value is None else self._multiple(value)
        if multiple is None:
            return self._only_read(scores, "relax.matmul"), 1.0
        inner, factor = multiple
        return self._only_read(inner, "relax.matmul"), factor

    def _only_read(self, operand: Expr, *names: str) -> Call | None:
        """The value of a variable that is read once, before conversions, if one of these operators computes it."""
        while isinstance(operand, relax.Var) and operand not in self._outputs and len(self._readers[operand]) == 1:
            value: Expr = self.values.get(operand)
            if op_name(value) != _CONVERSION:
                return value if op_name(value) in names else None
            operand = value.args[0]
        return None

    def _peeled(self, operand: Expr, axes: tuple[int, ...]) -> _Operand:
        """What an operand is before permutations, multiplications by numbers, and conversions between those."""
        peeled = _Operand(operand, axes)
        while isinstance(operand, relax.Var) and operand in self.values:
            value = self.values[operand]
            multiple = self._multiple(value)
            if op_name(value) == _PERMUTATION and value.attrs.axes is not None and len(value.attrs.axes) == len(axes):
                before = [int(axis) % len(axes) for axis in value.attrs.axes]
                peeled = _Operand(value.args[0], tuple(before[axis] for axis in peeled.axes), peeled.factor)
            elif multiple is not None:
                peeled = _Operand(multiple[0], peeled.axes, peeled.factor * multiple[1])
            elif op_name(value) != _CONVERSION:
                break
            operand = value.args[0] if multiple is None else multiple[0]
        return peeled

    def _multiple(self, value: Expr) -> tuple[Expr, float] | None:
        """What a value is a multiple of by a number, and the number."""
        if op_name(value) == "relax.divide":
            number = self._number(value.args[1])
            return None if number is None else (value.args[0], 1.0 / (number or nan))
        if op_name(value) == "relax.multiply":
            for operand, other in (value.args, reversed(value.args)):
                number = self._number(other)
                if number is not None:
                    return operand, number
        return None

    def _number(self, operand: Expr) -> float | None:
        """The number that a constant of one element is."""
        constant = self._unrounded(operand)
        is_number = is_tensor_constant(constant) and static_shape(constant) in ((), (1,))
        return float(values_of(constant).item()) if is_number else None

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

    def _rows(self, operand: _Operand, dtype: str) -> tuple[Expr, RowPart]:
        """The tensor (batch, rows, width) that an operand is a part of, and which part."""
        batch, rows, heads, size = operand.shape
        tensor = self._converted(self.leaf(operand.source), dtype)
        if operand.axes != _IN_ORDER:
            tensor = self.emit(relax.op.permute_dims(tensor, operand.axes))
        flat = self._flat(tensor, (batch, rows, heads * size))
        whole, begin = self._cut_from(flat)
        part = RowPart(static_shape(whole)[-1], begin)
        if not part.is_aligned:
            whole = flat
            part = RowPart(heads * size)
        return self._reshaped(whole, (batch, rows, part.width)), part

    def _flat(self, heads: Expr, shape: Sequence[int]) -> Expr:
        """The rows of all heads: what was reshaped to heads, if that had such rows."""
        made: Expr = self.builder.lookup_binding(heads) if isinstance(heads, relax.Var) else None
        is_flat = op_name(made) == "relax.reshape" and static_shape(made.args[0])[-1:] == tuple(shape[-1:])
        return made.args[0] if is_flat else self._reshaped(heads, shape)

    def _cut_from(self, rows: Expr) -> tuple[Expr, int]:
        """What a tensor is cut from along its last axis, and where it begins there."""
        made: Expr = self.builder.lookup_binding(rows) if isinstance(rows, relax.Var) else None
        if op_name(made) != "relax.strided_slice":
            return rows, 0
        whole, axes, begins, _, *strides = made.args
        last = len(static_shape(whole)) - 1
        numbers = [int(item.value) for items in (axes, begins, *strides) for item in items]
        if len(axes) != 1 or numbers[0] != last or numbers[1] < 0 or numbers[2:] not in ([], [1]):
            return rows, 0
        return whole, numbers[1]

    def _in_float32(self, added: Expr, shape: Sequence[int]) -> Expr:
        """What is added to the scores, of four axes."""
        return self._reshaped(self._converted(self.leaf(self._unrounded(added)), _FLOAT), shape)

    def _unrounded(self, operand: Expr) -> Expr:
        """An operand as it was in float32, if that was rounded; a constant that is bound to a variable."""
        value: Expr = self.values.get(operand) if isinstance(operand, relax.Var) else None
        if op_name(value) == _CONVERSION and _dtype(value.args[0]) == _FLOAT:
            return value.args[0]
        return operand if value is None or not is_tensor_constant(value) else value

    def _converted(self, tensor: Expr, dtype: str) -> Expr:
        return tensor if _dtype(tensor) == dtype else self.emit(relax.op.astype(tensor, dtype))

    def _reshaped(self, tensor: Expr, shape: Sequence[int]) -> Expr:
        return tensor if static_shape(tensor) == tuple(shape) else self.emit(relax.op.reshape(tensor, shape))


def _dtype(expr: Expr) -> str:
    return str(expr.ty.dtype)
