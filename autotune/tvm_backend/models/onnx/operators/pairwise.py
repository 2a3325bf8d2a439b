"""Operators that join any number of tensors element by element, as operators that join two.

TVM's importer stacks the tensors and reduces over the stack. That copies each of them, and nothing before the stack is
fused with what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import tvm
from tvm import relax

from autotune.tvm_backend.types import BlockBuilder, Expr

_OPERATORS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Max": relax.op.maximum,
    "Mean": relax.op.add,
    "Min": relax.op.minimum,
    "Sum": relax.op.add,
}


def is_pairwise(kind: str, inputs: Sequence[Expr]) -> bool:
    """Return whether an operator is one of these, on tensors of which not all are constants.

    The importer itself computes what depends on constants alone.
    """
    tensors = all(isinstance(getattr(item, "ty", None), relax.TensorType) for item in inputs)
    return kind in _OPERATORS and tensors and not all(isinstance(item, tvm.ir.GenericConst) for item in inputs)


def pairwise(builder: BlockBuilder, kind: str, inputs: Sequence[Expr]) -> Expr:
    """Emit the largest, the smallest, the sum or the mean of tensors, which broadcast."""
    joined: Any = reduce(lambda left, right: builder.emit(_OPERATORS[kind](left, right)), inputs)
    if kind != "Mean":
        return joined
    return builder.emit(relax.op.divide(joined, relax.const(len(inputs), str(inputs[0].ty.dtype))))
