"""Logarithms, and what is made of them: the inverse hyperbolic functions, and x to the power of y.

A power with a small constant exponent is computed by products, any other by log2 and exp2 in float64. The coefficients
are minimax fits of our own (scripts/models/fit_polynomials.py).
"""

from __future__ import annotations

from tvm import tirx

from autotune.tvm_backend.types import PrimExpr
from autotune.tvm_backend.vector_math.exponential import LN_2, LN_2_HIGH, LN_2_LOW, LOG2_E
from autotune.tvm_backend.vector_math.formula import Formula, constant_of

_LOG10_E = 0.4342944819032518
_LOG10_2_HIGH = 0.301025390625
_LOG10_2_LOW = 4.605038981195214e-06
_MIN_NORMAL = 1.1754943508222875e-38
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
_WIDE = "float64"
_BY_PRODUCTS = (-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0)
_EVEN_FROM = 16777216.0  # float32 has no odd number from here on
_WHOLE_FROM = 8388608.0
# log2(m) / s in powers of s**2, with s = (m - 1) / (m + 1) and sqrt(1/2) <= m <= sqrt(2), to 2.8e-14.
_LOG2 = (
    2.88539008177785,
    0.9617966941149,
    0.5770779418385973,
    0.4122093109892333,
    0.31990309588369054,
    0.2829399103869672,
)
# 2**r for |r| <= 1/2, to 8e-13.
_EXP2 = (
    0.9999999999997576,
    0.6931471805462991,
    0.24022650698927484,
    0.05550410940215055,
    0.00961812853618456,
    0.0013333451214904218,
    0.00015403854244199814,
    1.5309964951670108e-05,
    1.317571579608361e-06,
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
    small = size + square / (tirx.sqrt(square + 1.0) + 1.0)
    return f.signed(_log1p_or_log_of_double(f, size, small), x)


def acosh(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the inverse hyperbolic cosine, within 3 ulp; not-a-number below 1."""
    above = f.let(x - 1.0)
    result = f.let(_log1p_or_log_of_double(f, x, above + tirx.sqrt(above * 2.0 + above * above)))
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
    tiny = f.let(f.select(x < _MIN_NORMAL, 1.0, 0.0))
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


def power(f: Formula, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """Return x**y, with the values of C's powf for zeros, infinities and not-a-number.

    It is within 1 ulp; within 2 ulp for a constant exponent of `_BY_PRODUCTS`, which costs a few multiplications or a
    square root.
    """
    constant = constant_of(y)
    if constant is not None and constant in _BY_PRODUCTS:
        return _by_products(f, x, constant)
    y = f.let(y)
    size = f.magnitude(x)
    exponent_size = f.magnitude(y)
    scaled_log = f.let(_log2(f, size) * f.cast(y, _WIDE))
    magnitude = f.let(f.cast(_exp2(f, scaled_log), "float32"))
    return _special(f, x, y, size, exponent_size, magnitude)


def _special(
    f: Formula, x: PrimExpr, y: PrimExpr, size: PrimExpr, exponent_size: PrimExpr, magnitude: PrimExpr
) -> PrimExpr:
    infinity = f.const(float("inf"))
    nan = f.const(float("nan"))
    odd = f.select(exponent_size < _EVEN_FROM, f.select(_whole(f, exponent_size * 0.5), 0.0, 1.0), 0.0)
    whole = f.let(f.select(_whole(f, exponent_size), 1.0, 0.0))
    odd = f.let(odd * whole)
    negative = f.let(f.select(odd > 0.5, magnitude * -1.0, magnitude))
    below = f.select(whole > 0.5, negative, f.select(size < infinity, nan, magnitude))
    # The sign bit, not a comparison: (-0.0)**-3 is -infinity.
    result = f.let(f.select(f.bits(x) < 0, f.select(size == 0.0, negative, below), magnitude))
    result = f.let(f.select(size == 1.0, f.select(exponent_size == infinity, 1.0, result), result))
    broken = f.let(f.select(x != x, 1.0, f.select(y != y, 1.0, 0.0)))
    result = f.let(f.select(broken > 0.5, x + y, result))
    return f.select(x == 1.0, 1.0, f.select(y == 0.0, 1.0, result))


def _whole(f: Formula, size: PrimExpr) -> PrimExpr:
    """Return whether a number that is not negative is an integer."""
    size = f.let(size)
    cut = f.let((size + _WHOLE_FROM) - _WHOLE_FROM)
    return f.select(size < _WHOLE_FROM, cut, size) == size


def _log2(f: Formula, size: PrimExpr) -> PrimExpr:
    """Return log2 of a float32 that is not negative, in float64, where its denormals are normal numbers."""
    wide = f.let(f.cast(size, _WIDE))
    high = f.let(f.cast(f.bits(wide, "int64") >> 32, "int32"))
    power = f.let((high - 0x3FE6A09E) >> 20)
    shift = f.cast(power, "int64") << 52
    mantissa = f.let(f.bits(f.bits(wide, "int64") - shift, _WIDE))
    ratio = f.let((mantissa - 1.0) / (mantissa + 1.0))
    logarithm = f.let(ratio * f.polynomial(f.let(ratio * ratio), _LOG2, _WIDE) + f.cast(power, _WIDE))
    infinity = f.const(float("inf"), _WIDE)
    return f.select(wide == 0.0, infinity * -1.0, f.select(wide < infinity, logarithm, wide))


def _exp2(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return 2**x in float64, for results in the range of float32 and just beyond."""
    bounded = f.at_least(f.at_most(x, 200.0, _WIDE), -200.0, _WIDE)
    rounder = 6755399441055744.0  # 1.5 * 2**52
    shifted = f.let(bounded + rounder)
    rest = f.let(bounded - (shifted - rounder))
    exponent = (f.bits(shifted, "int64") << 52) + f.const(1023 << 52, "int64")
    return f.polynomial(rest, _EXP2, _WIDE) * f.bits(exponent, _WIDE)


def _by_products(f: Formula, x: PrimExpr, exponent: float) -> PrimExpr:
    """Return x to the power of one of `_BY_PRODUCTS`."""
    size = abs(exponent)
    if size == 0.5:
        # C's powf gives +infinity for -infinity and +0 for -0, where the root gives neither.
        root = f.select(x == 0.0, 0.0, tirx.sqrt(x))
        result = f.select(x == float("-inf"), float("inf"), root)
    elif size == 4.0:
        square = f.let(x * x)
        result = square * square
    else:
        result = {1.0: x, 2.0: x * x, 3.0: x * x * x}[size]
    return result if exponent > 0 else f.const(1.0) / result
