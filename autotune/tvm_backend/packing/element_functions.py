"""The functions of elementwise operators, once for all element types.

Float32 in blocks is computed by the operator itself. Bfloat16 is computed by an expression, so that one kernel computes
a product and what follows it. Of bytes a function of one value becomes a table, which NumPy computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import te, tirx

from autotune.tvm_backend.types import PrimExpr

Array = npt.NDArray[Any]
_DTYPE = "float32"


@dataclass(frozen=True)
class ElementFunction:
    """What an elementwise operator computes.

    Attributes:
        expression: Of float32 elements, as an element of a tensor expression; numbers among the arguments of the
            operator are operands. None if bfloat16 becomes plain before it.
        numbers: Of float32 arrays; None if there is no table of it.
        is_finite: Whether it is finite for all finite operands, so that it may be computed of lanes that only fill up a
            chunk.
    """

    expression: Callable[..., PrimExpr] | None = None
    numbers: Callable[..., Array] | None = None
    is_finite: bool = True


def _number(value: float) -> PrimExpr:
    return tirx.const(value, _DTYPE)


def _sigmoid(x: PrimExpr) -> PrimExpr:
    return _number(1.0) / (_number(1.0) + tirx.exp(-x))


# erf(x) / x as a polynomial of x**2 for |x| <= 3, to 1.7e-5: least squares weighted by the errors, repeatedly (Lawson).
_ERF = (
    1.1282684, -0.37531484, 0.11107927, -0.025102814, 0.004235408, -0.00051103237, 4.1059936e-05, -1.9447821e-06,
    4.0740959e-08,
)  # fmt: skip
_ERF_IS_ONE = 3.0


def _erf(x: PrimExpr) -> PrimExpr:
    """The error function within 3e-5, which is little beside the rounding of the result, in a third of the time."""
    near = _clip(x, _number(-_ERF_IS_ONE), _number(_ERF_IS_ONE))
    square = near * near
    total = _number(_ERF[-1])
    for coefficient in reversed(_ERF[:-1]):
        total = total * square + _number(coefficient)
    return near * total


def _clip(x: PrimExpr, low: PrimExpr, high: PrimExpr) -> PrimExpr:
    return te.max(te.min(x, high), low)


def _leaky(x: PrimExpr, slope: PrimExpr) -> PrimExpr:
    return tirx.Select(x > _number(0.0), x, x * slope)


def _sigmoids(x: Array) -> Array:
    return (1.0 / (1.0 + np.exp(-x.astype(np.float64)))).astype(np.float32)


def _erfs(x: Array) -> Array:
    return np.array([math.erf(float(item)) for item in x], dtype=np.float32)


def _gelus(x: Array) -> Array:
    return (x.astype(np.float64) * 0.5 * (1.0 + _erfs(x / np.float32(math.sqrt(2.0))))).astype(np.float32)


_F = ElementFunction
FUNCTIONS: Mapping[str, ElementFunction] = {
    "relax.abs": _F(numbers=np.abs),
    "relax.add": _F(lambda x, y: x + y, np.add),
    "relax.ceil": _F(),
    "relax.clip": _F(_clip),
    "relax.divide": _F(lambda x, y: x / y, np.divide, is_finite=False),
    "relax.erf": _F(_erf, _erfs),
    "relax.exp": _F(numbers=np.exp),
    "relax.floor": _F(),
    "relax.log": _F(is_finite=False),
    "relax.maximum": _F(te.max, np.maximum),
    "relax.minimum": _F(te.min, np.minimum),
    "relax.multiply": _F(lambda x, y: x * y, np.multiply),
    "relax.negative": _F(numbers=np.negative),
    "relax.nn.gelu": _F(numbers=_gelus),
    "relax.nn.gelu_tanh": _F(),
    "relax.nn.leakyrelu": _F(_leaky),
    "relax.nn.relu": _F(lambda x: te.max(x, _number(0.0)), lambda x: np.maximum(x, np.float32(0))),
    "relax.nn.relu6": _F(lambda x: _clip(x, _number(0.0), _number(6.0))),
    "relax.nn.selu": _F(),
    "relax.nn.silu": _F(lambda x: x * _sigmoid(x), lambda x: x * _sigmoids(x)),
    "relax.nn.softplus": _F(),
    "relax.power": _F(is_finite=False),
    "relax.round": _F(),
    "relax.rsqrt": _F(is_finite=False),
    "relax.sigmoid": _F(_sigmoid, _sigmoids),
    "relax.sign": _F(),
    "relax.sqrt": _F(numbers=np.sqrt, is_finite=False),
    "relax.square": _F(numbers=np.square),
    "relax.subtract": _F(lambda x, y: x - y, np.subtract),
    "relax.tanh": _F(tirx.tanh, np.tanh),
}
