"""Leave parts without elements out of concatenations.

TVM cannot load a library that holds such a constant, and cannot compile a concatenation of one that is computed.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax

from autotune.tvm_backend.graph.rewrite import (
    Expr,
    PlainRewriter,
    op_name,
    rewrite_and_clean,
    static_shape,
)


def drop_empty_parts(mod: Any) -> Any:
    """Rewrite `main` so that no concatenation has a part without elements beside others, if one has.

    Args:
        mod: A module as it was imported.
    """
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    if not any(len(_parts(binding.value)) != len(_kept(binding.value)) for binding in bindings):
        return mod
    return rewrite_and_clean(mod, _Dropper)


class _Dropper(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        kept = _kept(value)
        if len(kept) == len(_parts(value)):
            return None
        joined = [self.leaf(part) for part in kept]
        return joined[0] if len(joined) == 1 else relax.op.concat(joined, value.attrs.axis)


def _parts(value: Expr) -> list[Expr]:
    """Return what a value concatenates; nothing if it is no concatenation."""
    return list(value.args[0].fields) if op_name(value) == "relax.concat" else []


def _kept(value: Expr) -> list[Expr]:
    """Return the parts with elements, or all if none has any."""
    parts = _parts(value)
    return [part for part in parts if prod(static_shape(part)) > 0] or parts
