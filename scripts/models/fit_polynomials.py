"""Fit the polynomials of autotune/tvm_backend/vector_math: print the coefficients and the largest error of each.

    python scripts/models/fit_polynomials.py

Lawson's algorithm: least squares with weights that grow where the error is large, until it is equally large everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

_POINTS = 4000
_ROUNDS = 400
_SQRT_2 = math.sqrt(2.0)


@dataclass(frozen=True)
class Fit:
    """What to fit between two bounds; an error counts `weight` times."""

    name: str
    function: Function
    weight: Function
    low: float
    high: float
    degree: int


def _series(terms: Callable[[int], float], first: int, count: int = 60) -> Function:
    """sum(terms(k) * x**(k - first)), for what cancels when it is computed in another way."""
    return lambda x: sum(terms(k) * x ** (k - first) for k in range(first, first + count))


def _root(function: Function) -> Function:
    return lambda z: function(np.sqrt(z))


def _asin_term(k: int) -> float:
    return math.comb(2 * k, k) / (4.0**k * (2 * k + 1))


_EXP_REST = _series(lambda k: 1 / math.factorial(k), 2, 30)
_ATANH_LIMIT = ((_SQRT_2 - 1) / (_SQRT_2 + 1) * 1.001) ** 2

FITS = (
    Fit("exponential._EXP", _EXP_REST, lambda r: r * r / np.exp(r), -0.35, 0.35, 4),
    Fit("exponential._EXPM1", _EXP_REST, lambda r: np.abs(r * r / np.expm1(r)), -0.35, 0.35, 5),
    Fit(
        "logarithm._LOG",
        lambda r: np.asarray((np.log1p(r.astype(np.longdouble)) - r + r * r / 2) / r.astype(np.longdouble) ** 3, float),
        lambda r: np.abs(r**3 / np.log1p(r)),
        math.sqrt(0.5) - 1.0001,
        _SQRT_2 - 0.9999,
        8,
    ),
    Fit(
        "trigonometric._SIN",
        _series(lambda k: (-1) ** k / math.factorial(2 * k + 1), 1, 15),
        _root(lambda r: r**3 / np.sin(r)),
        0.0,
        0.62,
        3,
    ),
    Fit(
        "trigonometric._COS",
        _series(lambda k: (-1) ** k / math.factorial(2 * k), 2, 15),
        _root(lambda r: r**4 / np.cos(r)),
        0.0,
        0.62,
        2,
    ),
    Fit(
        "trigonometric._ATAN",
        _root(lambda x: np.asarray((np.arctan(x.astype(np.longdouble)) - x) / x.astype(np.longdouble) ** 3, float)),
        _root(lambda x: x**3 / np.arctan(x)),
        0.0,
        1.0,
        8,
    ),
    Fit("trigonometric._ASIN", _series(_asin_term, 1, 40), _root(lambda x: x**3 / np.arcsin(x)), 0.0, 0.2503, 5),
    Fit(
        "power._LOG2",
        _series(lambda k: 2 / math.log(2) / (2 * k + 1), 0, 40),
        np.ones_like,
        0.0,
        _ATANH_LIMIT,
        5,
    ),
    Fit("power._EXP2", np.exp2, lambda r: 1 / np.exp2(r), -0.501, 0.501, 8),
)


def fit(wanted: Fit) -> tuple[float, Array]:
    """The largest weighted error and the coefficients, that of the constant term first."""
    x = _points(wanted.low, wanted.high)
    y = wanted.function(x)
    weight = wanted.weight(x)
    columns = x[:, None] ** np.arange(wanted.degree + 1)
    best = (math.inf, np.zeros(wanted.degree + 1))
    emphasis = np.ones_like(x)
    for _ in range(_ROUNDS):
        scale = np.sqrt(emphasis) * weight
        coefficients = _least_squares(columns * scale[:, None], y * scale)
        error = np.abs(weight * (columns @ coefficients - y))
        best = min(best, (float(error.max()), coefficients), key=lambda item: item[0])
        emphasis = np.maximum(emphasis * error / error.max(), 1e-30)
    return best


def fit_erf(above: int = 6, below: int = 5, limit: float = 3.95**2) -> tuple[float, Array, Array]:
    """The largest relative error of erf(x) / x, and the coefficients of numerator and denominator in x**2."""
    z = _points(1e-12, limit)
    y = special.erf(np.sqrt(z)) / np.sqrt(z)
    scaled = z / limit
    tops = scaled[:, None] ** np.arange(above + 1)
    bottoms = scaled[:, None] ** np.arange(1, below + 1)
    best = (math.inf, np.zeros(0))
    emphasis = np.ones_like(z)
    denominator = np.ones_like(z)
    for turn in range(_ROUNDS * 2):
        weight = np.sqrt(emphasis) / np.abs(denominator) / y
        solution = _least_squares(np.hstack([tops, -y[:, None] * bottoms]) * weight[:, None], y * weight)
        denominator = 1 + bottoms @ solution[above + 1 :]
        error = np.abs(tops @ solution[: above + 1] / denominator - y) / y
        best = min(best, (float(error.max()), solution), key=lambda item: item[0])
        emphasis = emphasis * (error + error.max() * 1e-3) if turn > 20 else emphasis
        emphasis = emphasis / emphasis.mean()
    powers = limit ** np.concatenate([np.arange(above + 1), np.arange(1, below + 1)])
    coefficients = best[1] / powers
    return best[0], coefficients[: above + 1], np.concatenate([[1.0], coefficients[above + 1 :]])


def _points(low: float, high: float) -> Array:
    """Chebyshev's points between two bounds."""
    angles = (2 * np.arange(_POINTS) + 1) * np.pi / (2 * _POINTS)
    return np.asarray((low + high) / 2 + (high - low) / 2 * np.cos(angles))


def _least_squares(columns: Array, y: Array) -> Array:
    sizes = np.abs(columns).max(0)
    return np.asarray(np.linalg.lstsq(columns / sizes, y, rcond=None)[0] / sizes)


def main() -> None:
    for wanted in FITS:
        error, coefficients = fit(wanted)
        print(f"{wanted.name}: to {error:.2g}\n    {[float(value) for value in coefficients]}")
    error, above, below = fit_erf()
    for name, coefficients in (("_ERF_ABOVE", above), ("_ERF_BELOW", below)):
        print(f"exponential.{name}: to {error:.2g}\n    {[float(value) for value in coefficients]}")


if __name__ == "__main__":
    main()
