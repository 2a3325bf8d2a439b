"""x to the power of y: by products for small constant exponents, otherwise by log2 and exp2 in float64.

The coefficients are minimax fits of our own (scripts/models/fit_polynomials.py).
"""

from __future__ import annotations

from tvm import tirx

from autotune.tvm_backend.types import PrimExpr
from autotune.tvm_backend.vector_math.formula import Formula

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


def power(f: Formula, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """Return x**y, with the values of C's powf for zeros, infinities and not-a-number.

    It is within 1 ulp; within 2 ulp for a constant exponent of `_BY_PRODUCTS`, which costs a few multiplications or a
    square root.
    """
    constant = _constant(y)
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


def _constant(y: PrimExpr) -> float | None:
    value = y.value if isinstance(y, tirx.Broadcast) else y
    return float(value.value) if isinstance(value, tirx.FloatImm) else None
