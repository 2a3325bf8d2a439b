"""Fold operators on constants.

TVM's pass for it lowers each operator of a function to find out whether it can fold it, which takes as long as lowering
the function. So it is given the operators on constants alone.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from autotune.tvm_backend.graph.rewrite import Expr, PlainRewriter, is_rewritable, rewrite


def fold_constants(mod: Any) -> Any:
    """Rewrite `main` as TVM's FoldConstant does.

    Args:
        mod: A module before LegalizeOps.
    """
    if not is_rewritable(mod):
        return relax.transform.FoldConstant()(mod)
    bindings = _constant_bindings(mod["main"])
    if not bindings:
        return mod
    folded = _Constants(mod).fold(bindings)
    return rewrite(mod, lambda module: _Folder(module, folded))


def _constant_bindings(function: Any) -> list[Any]:
    """Return the bindings of calls that depend on constants alone, in order."""
    found: dict[Any, Any] = {}

    def is_constant(expr: Expr) -> bool:
        if isinstance(expr, relax.Tuple):
            return all(map(is_constant, expr.fields))
        return expr in found if isinstance(expr, relax.Var) else True

    blocks = [block for block in function.body.blocks if isinstance(block, relax.DataflowBlock)]
    for binding in (binding for block in blocks for binding in block.bindings):
        is_call = isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.Call)
        if is_call and all(map(is_constant, binding.value.args)):
            found[binding.var] = binding
    return list(found.values())


class _Constants(PlainRewriter):
    """Makes a function of the operators on constants."""

    def fold(self, bindings: list[Any]) -> dict[Any, Expr]:
        """Return the values of the variables that TVM can fold."""
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

    def __init__(self, mod: Any, folded: dict[Any, Expr]) -> None:
        super().__init__(mod)
        self._folded = folded

    def visit(self, var: Expr, value: Expr) -> None:
        known = self._folded.get(var)
        if known is None:
            super().visit(var, value)
        else:
            self.bind(var, self.builder.emit(known, var.name) if isinstance(known, relax.Tuple) else known)

    def replace(self, value: Expr) -> None:
        """Leave what has no value yet as it is."""
