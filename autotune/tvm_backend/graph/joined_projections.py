"""The projections of one tensor to the heads of an attention become one product, of which they are parts.

Each alone has too few results to fill a GPU. The kernel of an attention reads the parts where they lie
(`fused_attention.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import (
    bindings_of,
    constant_of,
    float_dtype,
    is_tensor_constant,
    op_name,
    readers,
    results_of,
    static_shape,
    values_of,
)
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.types import Expr, IRModule, Var

_FLOAT = "float32"
_HEADS = 4  # axes: batch, rows, heads and elements


def join_projections(mod: IRModule) -> IRModule:
    """Rewrite `main` so that products of one tensor that are reshaped to heads are one product.

    Args:
        mod: A module before LegalizeOps, in float32.
    """
    return rewrite_and_clean(mod, _Joiner)


@dataclass(frozen=True)
class _Projection:
    """A product with a constant matrix, and a constant vector that is added to it if any is.

    Attributes:
        result: The variable of what is reshaped to heads.
    """

    data: Var
    weights: Expr
    bias: Expr | None
    result: Var


class _Joiner(PlainRewriter):
    local = ("values",)

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._readers = readers(self.function)
        self._outputs = results_of(self.function)
        groups: dict[tuple[Var, bool], list[_Projection]] = {}
        for item in bindings_of(self.function):
            projection = self._projection(item.var, item.value)
            if projection is not None:
                groups.setdefault((projection.data, projection.bias is None), []).append(projection)
        self._groups = {item.result: group for group in groups.values() if len(group) > 1 for item in group}
        self._parts: dict[Var, Expr] = {}

    def visit(self, var: Var, value: Expr) -> None:
        if var in self._groups and var not in self._parts:
            self._parts.update(self._joined(self._groups[var]))
        if var in self._parts:
            self.values[var] = value
            self.bind(var, self._parts[var])
        else:
            super().visit(var, value)

    def replace(self, value: Expr) -> None:
        """Leave what is no projection as it is."""

    def _projection(self, var: Var, value: Expr) -> _Projection | None:
        if op_name(value) != "relax.matmul" or float_dtype(value) != _FLOAT:
            return None
        data, weights = value.args
        if not isinstance(data, relax.Var) or not is_tensor_constant(weights) or len(static_shape(weights)) != 2:
            return None
        added = self._only_reader(var, "relax.add")
        bias = None if added is None else next((item for item in added[1].args if is_tensor_constant(item)), None)
        result = var if added is None else added[0]
        heads = self._only_reader(result, "relax.reshape")
        columns = static_shape(weights)[1]
        if heads is None or (added is not None and (bias is None or static_shape(bias) != (columns,))):
            return None
        shape = static_shape(heads[1])
        is_of_heads = len(shape) == _HEADS and shape[-2] * shape[-1] == columns
        return _Projection(data, weights, bias, result) if is_of_heads else None

    def _only_reader(self, var: Var, name: str) -> tuple[Var, Expr] | None:
        """What alone reads a variable, if that is such an operator."""
        others = self._readers.get(var, [])
        if var in self._outputs or len(others) != 1 or op_name(others[0][1]) != name:
            return None
        return others[0]

    def _joined(self, group: Sequence[_Projection]) -> dict[Var, Expr]:
        """Compute all projections as one; return the part that each of them is."""
        weights = np.concatenate([values_of(item.weights) for item in group], axis=1)
        whole = self.emit(relax.op.matmul(self.leaf(group[0].data), constant_of(weights, _FLOAT)))
        biases = [values_of(item.bias) for item in group if item.bias is not None]
        if biases:
            whole = self.emit(relax.op.add(whole, constant_of(np.concatenate(biases), _FLOAT)))
        ends = np.cumsum([0, *(static_shape(item.weights)[1] for item in group)]).tolist()
        axis = len(static_shape(whole)) - 1
        return {
            item.result: self.emit(relax.op.strided_slice(whole, axes=[axis], begin=[begin], end=[end]))
            for item, begin, end in zip(group, ends, ends[1:], strict=False)
        }
