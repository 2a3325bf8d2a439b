"""Recognise dynamic quantisation: the scale and the zero point follow from the range of the values, each time anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.types import Expr, Var

# From a scale to the values whose range it follows from: the operator, and which argument to follow.
_TO_VALUES = (("relax.where", 2), ("relax.divide", 0), ("relax.subtract", 0), ("relax.maximum", 0), ("relax.max", 0))
_TO_SCALE = (("relax.astype", 0), ("relax.round", 0), ("relax.clip", 0), ("relax.negative", 0), ("relax.divide", 1))


@dataclass(frozen=True)
class DynamicBytes:
    """Variables of a dynamic quantisation: the values, the bytes, their scale and their zero point."""

    values: Expr
    bytes: Expr
    scale: Expr
    zero_point: Expr


def dynamic_bytes(values: Mapping[Var, Expr], var: Expr) -> DynamicBytes | None:
    """Return the dynamic quantisation that a variable is the result of; None if it is something else."""
    call = values[var]
    if op_name(call) != "relax.quantize" or not all(isinstance(item, relax.Var) for item in call.args[1:]):
        return None
    data, scale, point = call.args
    source = _followed(values, scale, _TO_VALUES)
    own_scale = _followed(values, point, _TO_SCALE)
    plain = static_shape(data) and str(data.ty.dtype) == "float32" and str(call.ty.dtype) == "uint8"
    if not plain or source is None or own_scale is None or not (source.same_as(data) and own_scale.same_as(scale)):
        return None
    return DynamicBytes(data, var, scale, point)


def _followed(values: Mapping[Var, Expr], expr: Expr, path: Sequence[tuple[str, int]]) -> Expr | None:
    for name, argument in path:
        value: Expr = values.get(expr) if isinstance(expr, relax.Var) else expr
        if op_name(value) != name:
            return None
        expr = value.args[argument]
    return expr
