"""Logarithms, and the inverse hyperbolic functions that are made of them.

The coefficients are minimax fits of our own (scripts/models/fit_polynomials.py).
"""

from __future__ import annotations

from tvm import tirx

from autotune.tvm_backend.types import PrimExpr
from autotune.tvm_backend.vector_math.exponential import LN_2, LN_2_HIGH, LN_2_LOW, LOG2_E
from autotune.tvm_backend.vector_math.formula import Formula

_LOG10_E = 0.4342944819032518
_LOG10_2_HIGH = 0.301025390625
_LOG10_2_LOW = 4.605038981195214e-06
_LEAST_NORMAL = 1.1754943508222875e-38
_SQRT_HALF_BITS = 0x3F3504F3
_HUGE = 1e9  # its square plus one is its square

# (log(1 + r) - r + r**2 / 2) / r**3 for sqrt(1/2) <= 1 + r <= sqrt(2), to 7.6e-10 of the logarithm.
_LOG = (
    0.33333312415132316,
    -0.2500000963721854,
    0.20002133585797438,
    -0.16668006877913233,
    0.14219224420506446,
    -0.12405135526065016,
    0.11890323450415487,
    -0.11679653773961451,
    0.06746599334682062,
)


def log(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the natural logarithm, within 1 ulp."""
    power, rest = _split(f, x)
    square = f.let(rest * rest)
    tail = rest * square * f.polynomial(rest, _LOG) + power * LN_2_LOW
    return _limits(f, x, f.let((tail - square * 0.5) + rest + power * LN_2_HIGH))


def log2(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the logarithm to base 2, within 2 ulp."""
    power, rest = _split(f, x)
    return _limits(f, x, f.let(_log_of_rest(f, rest) * LOG2_E + power))


def log10(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the logarithm to base 10, within 2 ulp."""
    power, rest = _split(f, x)
    small = _log_of_rest(f, rest) * _LOG10_E + power * _LOG10_2_LOW
    return _limits(f, x, f.let(small + power * _LOG10_2_HIGH))


def log1p(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return log(1 + x), within 2.5 ulp.

    It is corrected for what 1 + x loses (Goldberg, What Every Computer Scientist Should Know, 1991, theorem 4).
    """
    more = f.let(x + 1.0)
    back = f.let(more - 1.0)
    logarithm = f.let(log(f, more))
    return f.select(back == 0.0, x, f.select(back == x, logarithm, logarithm * (x / back)))


def asinh(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the inverse hyperbolic sine, within 3 ulp."""
    size = f.magnitude(x)
    square = f.let(size * size)
    small = size + square / (_sqrt(square + 1.0) + 1.0)
    return f.signed(_log1p_or_log_of_double(f, size, small), x)


def acosh(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the inverse hyperbolic cosine, within 3 ulp; not-a-number below 1."""
    above = f.let(x - 1.0)
    result = f.let(_log1p_or_log_of_double(f, x, above + _sqrt(above * 2.0 + above * above)))
    return f.select(x < 1.0, float("nan"), result)


def atanh(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the inverse hyperbolic tangent, within 3 ulp; not-a-number beyond 1."""
    size = f.magnitude(x)
    return f.signed(log1p(f, f.let(size * 2.0 / (f.const(1.0) - size))) * 0.5, x)


def _log1p_or_log_of_double(f: Formula, size: PrimExpr, small: PrimExpr) -> PrimExpr:
    """Return log(2 * size) for a huge size, otherwise log1p(small)."""
    huge = f.let(f.select(size > _HUGE, 1.0, 0.0))
    return log1p(f, f.let(f.select(huge > 0.5, size, small))) + huge * LN_2


def _split(f: Formula, x: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """Return n and r with x = 2**n (1 + r), both float32. They mean nothing where x is not positive and finite."""
    tiny = f.let(f.select(x < _LEAST_NORMAL, 1.0, 0.0))
    bits = f.let(f.bits(f.select(tiny > 0.5, x * 8388608.0, x)))
    power = f.let((bits - _SQRT_HALF_BITS) >> 23)
    mantissa = f.bits(bits - (power << 23), "float32")
    return f.let(f.cast(power, "float32") - tiny * 23.0), f.let(mantissa - 1.0)


def _log_of_rest(f: Formula, rest: PrimExpr) -> PrimExpr:
    """Return log(1 + r)."""
    square = f.let(rest * rest)
    return (rest * square * f.polynomial(rest, _LOG) - square * 0.5) + rest


def _limits(f: Formula, x: PrimExpr, logarithm: PrimExpr) -> PrimExpr:
    """Return a logarithm with its values at zero, at infinity, below zero and for not-a-number."""
    infinity = float("inf")
    ordinary = f.select(x < infinity, logarithm, x)  # of infinity, and of what is not a number, the same
    return f.select(x > 0.0, ordinary, f.select(x == 0.0, -infinity, float("nan") + x))


def _sqrt(x: PrimExpr) -> PrimExpr:
    return tirx.sqrt(x)
