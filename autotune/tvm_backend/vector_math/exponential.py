"""exp and what follows from it: exp2, exp10, tanh, the logistic function, erf, sinh, cosh.

The argument is reduced to r with |r| <= ln(2) / 2 and a power of two (Cody and Waite, Software Manual for the
Elementary Functions, 1980). The coefficients are minimax fits of our own (scripts/models/fit_polynomials.py).
"""

from __future__ import annotations

from autotune.tvm_backend.types import PrimExpr
from autotune.tvm_backend.vector_math.formula import Formula

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LN_2_HIGH = 0.693359375  # the high part has nine bits: a multiple of it is exact
LN_2_LOW = -2.1219444005469057e-4
_LOG2_10 = 3.321928094887362
_LN_10 = 2.302585092994046
_LOG10_2_HIGH = 0.301025390625
_LOG10_2_LOW = 4.605038981195214e-06

# (exp(r) - 1 - r) / r**2, to 3.3e-9 of exp(r).
_EXP = (0.49999993050728764, 0.16666514791440457, 0.04166845678657423, 0.008369418831738477, 0.0013813144544184933)
# The same, to 2.6e-10 of exp(r) - 1.
_EXPM1 = (
    0.5000000046819968,
    0.16666666352400947,
    0.041666348710031643,
    0.008333391636671445,
    0.0013941652512540954,
    0.00019845958229667448,
)
# erf(x) / x as a quotient of polynomials in x**2, for |x| <= 3.95, to 1.9e-9.
_ERF_ABOVE = (
    1.128379225730896,
    0.18516871333122253,
    0.05427476763725281,
    0.003843362210318446,
    0.0003779385006055236,
    4.6404875320149586e-06,
    -1.296731078070934e-08,
)
_ERF_BELOW = (
    1.0,
    0.49743491411209106,
    0.11391089856624603,
    0.015443707816302776,
    0.0013040630146861076,
    6.269300502026454e-05,
)
_ERF_IS_ONE = 3.92  # from here on float32 has nothing between erf and 1


def exp(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return e**x, within 1.5 ulp."""
    fraction, power = _reduced(f, _bounded(f, x, -104.0, 89.0))
    return f.select(x < -104.0, 0.0, scaled(f, _exp_reduced(f, fraction), power))


def exp2(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return 2**x, within 1.5 ulp."""
    bounded = _bounded(f, x, -151.0, 129.0)
    whole, power = f.rounded(bounded)
    return f.select(x < -151.0, 0.0, scaled(f, _exp_reduced(f, f.let((bounded - whole) * LN_2)), power))


def exp10(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return 10**x, within 1.5 ulp."""
    bounded = _bounded(f, x, -46.0, 39.0)
    whole, power = f.rounded(bounded * _LOG2_10)
    rest = f.let(bounded - whole * _LOG10_2_HIGH - whole * _LOG10_2_LOW)
    return f.select(x < -46.0, 0.0, scaled(f, _exp_reduced(f, f.let(rest * _LN_10)), power))


def tanh(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the hyperbolic tangent, within 2.5 ulp. It follows from exp(2|x|) - 1, so nothing cancels near zero."""
    doubled = f.let(f.at_most(f.magnitude(x), 10.0) * 2.0)
    grown = f.let(_expm1(f, doubled))
    return f.signed(grown / (grown + 2.0), x)


def sigmoid(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the logistic function 1 / (1 + exp(-x)), within 2.5 ulp. No intermediate value overflows."""
    decayed = f.let(_decayed(f, x))
    return f.select(x < 0.0, decayed, 1.0) / (decayed + 1.0)


def erf(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the error function, within 6 ulp: a quotient of polynomials, which is 1 from 3.92 on."""
    size = f.magnitude(x)
    bounded = f.at_most(size, _ERF_IS_ONE)
    square = f.let(bounded * bounded)
    quotient = bounded * f.polynomial(square, _ERF_ABOVE) / f.polynomial(square, _ERF_BELOW)
    return f.signed(f.select(size < _ERF_IS_ONE, quotient, f.select(x == x, 1.0, x)), x)


def sinh(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the hyperbolic sine, within 2.5 ulp."""
    size = f.magnitude(x)
    grown = f.let(_expm1(f, f.at_most(size, 1.0)))
    half = f.let(_half_exp(f, size))
    return f.signed(f.select(size < 1.0, (grown + grown / (grown + 1.0)) * 0.5, half - 0.25 / half), x)


def cosh(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the hyperbolic cosine, within 2 ulp."""
    half = f.let(_half_exp(f, f.magnitude(x)))
    return half + 0.25 / half


def scaled(f: Formula, value: PrimExpr, power: PrimExpr) -> PrimExpr:
    """Return `value * 2**power`.

    Two multiplications make it, so infinities and denormals come out right.

    Args:
        f: Where intermediate values are bound.
        value: float32.
        power: int32 from -250 to 250.
    """
    half = f.let(power >> 1)
    return value * _power_of_two(f, half) * _power_of_two(f, power - half)


def _bounded(f: Formula, x: PrimExpr, least: float, most: float) -> PrimExpr:
    """Return the smaller of `x` and `most`, or 0 where `x` is below `least`, because its power is 0 there.

    A product that is too small for float32 takes an Intel CPU 150 cycles, even if it becomes 0.
    """
    return f.let(f.select(x < least, 0.0, f.at_most(x, most)))


def _decayed(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return exp(-|x|). It is at most 1, so a smaller range of powers has to be made than for exp."""
    below = f.let(f.negative(x))
    rest, power = _reduced(f, f.let(f.select(below < -104.0, 0.0, below)))
    shifted = _exp_reduced(f, rest) * _power_of_two(f, power + 24)
    return f.select(below < -104.0, 0.0, shifted * 2.0**-24)


def _power_of_two(f: Formula, power: PrimExpr) -> PrimExpr:
    return f.bits((power + 127) << 23, "float32")


def _reduced(f: Formula, x: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """Return r and an int32 n with x = r + n ln(2)."""
    whole, power = f.rounded(x * LOG2_E)
    return f.let((x - whole * LN_2_HIGH) - whole * LN_2_LOW), power


def _exp_reduced(f: Formula, rest: PrimExpr) -> PrimExpr:
    return f.polynomial(rest, (1.0, 1.0, *_EXP))


def _half_exp(f: Formula, size: PrimExpr) -> PrimExpr:
    """Return exp(x) / 2 for x >= 0. It is finite wherever the hyperbolic functions are."""
    rest, power = _reduced(f, f.at_most(size, 90.0))
    return scaled(f, _exp_reduced(f, rest), f.let(power - 1))


def _expm1(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return exp(x) - 1 for 0 <= x <= 80, with full relative accuracy."""
    rest, power = _reduced(f, x)
    factor = f.let(_power_of_two(f, power))
    return factor * (rest + rest * rest * f.polynomial(rest, _EXPM1)) + (factor - 1.0)
