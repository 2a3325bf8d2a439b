"""Divisions of PyTorch that round: TVM's importer gives a number beside a tensor another type than the tensor has."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

from autotune.tvm_backend.expressions import float_dtype
from autotune.tvm_backend.types import Expr


def _division(node: Any, importer: Any) -> Expr:
    """Import `div.Tensor_mode`. `node` is torch's, `importer` TVM's."""
    mode = node.kwargs.get("rounding_mode")
    if mode == "floor":
        return importer._binary_op(relax.op.floor_divide, operator.floordiv)(node)
    quotient = importer._binary_op(relax.op.divide, operator.truediv)(node)
    is_whole = mode is None or float_dtype(quotient) is None  # a quotient of integers is rounded to zero
    return quotient if is_whole else importer.block_builder.emit(relax.op.trunc(quotient))


CONVERTERS: Mapping[str, Callable[[Any, Any], Expr]] = {"div.Tensor_mode": _division}
