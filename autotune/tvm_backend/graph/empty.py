"""Leave constants without elements out of concatenations: TVM cannot load a library that holds such a constant."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax

from autotune.tvm_backend.graph.rewrite import Expr, Rewriter, is_tensor_constant, op_name, rewrite, static_shape


def drop_empty_parts(mod: Any) -> Any:
    """Rewrite `main` so that no concatenation has a constant without elements.

    Args:
        mod: A module before LegalizeOps, its constants folded.
    """
    return rewrite(mod, _Dropper)


class _Dropper(Rewriter):
    """Keeps the new expression of each old variable."""

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._new: dict[Any, Expr] = {}

    def visit(self, var: Expr, value: Expr) -> None:
        parts = list(value.args[0].fields) if op_name(value) == "relax.concat" else []
        kept = [part for part in parts if not (is_tensor_constant(part) and prod(static_shape(part)) == 0)]
        if len(kept) == len(parts) or not kept:
            self._new[var] = self.builder.emit(self.rebuild(value), var.name)
        elif len(kept) == 1:
            self._new[var] = self.leaf(kept[0])
        else:
            joined = relax.op.concat([self.leaf(part) for part in kept], value.attrs.axis)
            self._new[var] = self.builder.emit(joined, var.name)

    def plain(self, var: Expr) -> Expr:
        return self._new.get(var, var)

    def bind(self, var: Expr, expr: Expr) -> None:
        self._new[var] = expr
