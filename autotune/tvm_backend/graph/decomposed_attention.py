"""Attention as `torch.export` decomposes it gets the form that exporters of ONNX write, for `fused_attention.py`.

PyTorch multiplies matrices of three axes, between reshapes from four and back, broadcasts tensors to the shape that
they have, and asks which scores are minus infinity to find the queries that have no keys.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import float_dtype, op_name, readers, static_shape
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.graph.strided_views import number_of
from autotune.tvm_backend.types import Expr, IRModule

_MATRICES = 4  # axes: batch, heads, rows and columns
# What is asked of the scores, from the last step to the first, without conversions.
_HAS_NO_KEY = ("relax.logical_not", "relax.max", "relax.logical_not", "relax.equal")


def compose_attention(mod: IRModule) -> IRModule:
    """Rewrite `main` so that products of heads have four axes, and zeros stand where a softmax has no numbers.

    Args:
        mod: A module before LegalizeOps, in float32.
    """
    return rewrite_and_clean(mod, _Composer)


class _Composer(PlainRewriter):
    local = ("values",)

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._readers = readers(self.function)

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) == "relax.broadcast_to":
            is_whole = static_shape(value) and static_shape(value) == static_shape(value.args[0])
            return self.leaf(value.args[0]) if is_whole else None
        if op_name(value) == "relax.reshape":
            return self._product(value)
        return self._guarded(value) if op_name(value) == "relax.where" else None

    def _product(self, reshaped: Expr) -> Expr | None:
        """A product of matrices of four axes that was computed with three."""
        product = self.bound(reshaped.args[0])
        shape = static_shape(reshaped)
        if op_name(product) != "relax.matmul" or len(static_shape(product)) != _MATRICES - 1 or len(shape) != _MATRICES:
            return None
        operands = [self._unfolded(item, shape[:2]) for item in product.args]
        if None in operands or len(self._readers[reshaped.args[0]]) != 1 or shape[2:] != static_shape(product)[1:]:
            return None
        return relax.op.matmul(*operands)

    def _unfolded(self, operand: Expr, heads: tuple[int, ...]) -> Expr | None:
        """An operand of three axes as it was with batch and heads apart."""
        value = self.bound(operand)
        matrix = static_shape(operand)[1:]
        is_folded = op_name(value) == "relax.reshape" and static_shape(value.args[0]) == (*heads, *matrix)
        return self.leaf(value.args[0]) if is_folded else None

    def _guarded(self, chosen: Expr) -> Expr | None:
        """A softmax with zeros where it has no numbers: its inputs are no keys of a query."""
        condition, zeros, softmax = chosen.args
        value = self.bound(softmax)
        scores = self._asked(condition)
        if op_name(value) != "relax.nn.softmax" or scores is None or not scores.same_as(value.args[0]):
            return None
        if float_dtype(value) != "float32" or int(value.attrs.axis) not in (-1, len(static_shape(value)) - 1):
            return None
        full = self.bound(zeros)
        if number_of(full.args[1] if op_name(full) == "relax.full_like" else zeros, self.values) != 0.0:
            return None
        kept = self.leaf(softmax)
        return relax.op.where(self.emit(relax.op.isnan(kept)), relax.const(np.float32(0), "float32"), kept)

    def _asked(self, condition: Expr) -> Expr | None:
        """The scores of which a condition says where all along the last axis are minus infinity."""
        value: Expr = None
        for name in _HAS_NO_KEY:
            value = self.bound(condition)
            while op_name(value) == "relax.astype":
                value = self.bound(value.args[0])
            if op_name(value) != name:
                return None
            condition = value.args[0]
            if name == "relax.max" and not _is_over_keys(value):
                return None
        return condition if number_of(value.args[1], self.values) == -np.inf else None


def _is_over_keys(maximum: Expr) -> bool:
    rank = len(static_shape(maximum.args[0]))
    if maximum.attrs.axis is None or not maximum.attrs.keepdims or not rank:
        return False
    return [int(axis) % rank for axis in maximum.attrs.axis] == [rank - 1]
