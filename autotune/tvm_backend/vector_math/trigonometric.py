"""sin, cos, tan and their inverses. Angles are in radians.

The argument is multiplied with as many bits of 2 / pi as its size needs (Payne and Hanek, Radian reduction for
trigonometric functions, 1983), in integers. So sin(1e30) is right, too. The coefficients are minimax fits of our own
(scripts/models/fit_polynomials.py).
"""

from __future__ import annotations

from tvm import tirx

from autotune.tvm_backend.types import PrimExpr
from autotune.tvm_backend.vector_math.formula import Formula

# 2 / pi in words of 32 bits, after one word of zeros.
_TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
_HALF_PI = 1.5707963267948966
_PI_HIGH = 3.1415927410125732
_PI_LOW = -8.742277657347586e-08
_SMALL = 0.78  # below it nothing has to be reduced

_SIN = (-0.16666666640588185, 0.008333329280522743, -0.00019839304415057132, 2.7180464684640454e-06)  # to 5e-12
_COS = (0.04166664555446469, -0.0013887309866448543, 2.443241296713641e-05)  # to 1.2e-10
# (atan(x) - x) / x**3 for |x| <= 1 in powers of x**2, to 2.6e-9 of atan(x).
_ATAN = (
    -0.33333299089196883,
    0.19998548286481616,
    -0.14264241703390274,
    0.10952185893081617,
    -0.08403450660564356,
    0.05795759903769416,
    -0.03117785109227985,
    0.010914608460170795,
    -0.001793622294093258,
)
# (asin(x) - x) / x**3 for |x| <= 1/2 in powers of x**2, to 2.8e-10 of asin(x).
_ASIN = (
    0.16666659944674952,
    0.0750050718279532,
    0.044516337852832114,
    0.03181320209454945,
    0.014416697983773557,
    0.037548756677097665,
)


def sin(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the sine, within 2 ulp."""
    quadrant, sine, cosine = _quarter(f, x)
    return _negated_if(f, quadrant & 2, f.select((quadrant & 1) == 0, sine, cosine))


def cos(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the cosine, within 2 ulp."""
    quadrant, sine, cosine = _quarter(f, x)
    return _negated_if(f, (quadrant + 1) & 2, f.select((quadrant & 1) == 0, cosine, sine))


def tan(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the tangent, within 4 ulp."""
    quadrant, sine, cosine = _quarter(f, x)
    even = f.let(f.select((quadrant & 1) == 0, 1.0, 0.0))
    above = f.select(even > 0.5, sine, cosine)
    below = f.select(even > 0.5, cosine, sine)
    return _negated_if(f, (quadrant & 1) << 1, above / below)


def atan(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the arc tangent, from -pi/2 to pi/2, within 2 ulp."""
    size = f.magnitude(x)
    slope = f.let(f.select(size > 1.0, f.const(1.0) / size, size))
    square = f.let(slope * slope)
    angle = f.let(slope + slope * square * f.polynomial(square, _ATAN))
    return f.signed(f.select(size > 1.0, (f.const(_PI_HIGH / 2) - angle) + _PI_LOW / 2, angle), x)


def asin(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the arc sine, from -pi/2 to pi/2, within 2 ulp; not-a-number beyond 1."""
    size = f.magnitude(x)
    angle = _asin_below_half(f, size)
    return f.signed(f.select(size > 0.5, (f.const(_PI_HIGH / 2) - angle * 2.0) + _PI_LOW / 2, angle), x)


def acos(f: Formula, x: PrimExpr) -> PrimExpr:
    """Return the arc cosine, from 0 to pi, within 2 ulp; not-a-number beyond 1."""
    size = f.magnitude(x)
    angle = f.let(_asin_below_half(f, size))
    middle = (f.const(_PI_HIGH / 2) - f.signed(angle, x)) + _PI_LOW / 2
    outer = f.select(x < 0.0, (f.const(_PI_HIGH) - angle * 2.0) + _PI_LOW, angle * 2.0)
    return f.select(size > 0.5, outer, middle)


def _asin_below_half(f: Formula, size: PrimExpr) -> PrimExpr:
    """Return asin of a size up to 1/2; for a larger one, asin(sqrt((1 - size) / 2))."""
    far = f.let((f.const(1.0) - size) * 0.5)
    square = f.let(f.select(size > 0.5, far, size * size))
    sine = f.let(f.select(size > 0.5, tirx.sqrt(far), size))
    return f.let(sine + sine * square * f.polynomial(square, _ASIN))


def _negated_if(f: Formula, two: PrimExpr, value: PrimExpr) -> PrimExpr:
    """Return the value, negated in the lanes in which `two` is 2; elsewhere it is 0."""
    return f.bits(f.bits(value) ^ (two << 30), "float32")


def _quarter(f: Formula, x: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """Return the quadrant of an angle, as int32, and the sine and cosine of what is left of it, within pi / 4."""
    quadrant, rest = _reduced(f, x)
    square = f.let(rest * rest)
    sine = f.let(f.select(rest == 0.0, rest, rest + rest * square * f.polynomial(square, _SIN)))  # keeps -0.0
    cosine = f.let((f.const(1.0) - square * 0.5) + square * square * f.polynomial(square, _COS))
    return quadrant, sine, cosine


def _reduced(f: Formula, x: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """Return n and r with x = r + n pi / 2. r is not-a-number where x is not finite."""
    bits = f.let(f.bits(x, "int32") & 0x7FFFFFFF)
    turns = _turns(f, bits)
    quadrant = f.let(f.cast((turns + f.const(1 << 61, "uint64")) >> 62, "int32"))
    left = f.let(turns - (f.cast(quadrant, "uint64") << 62))
    high = f.cast(f.cast(left >> 32, "int32"), "float64")
    low = f.cast(f.cast(left & f.const(0xFFFFFFFF, "uint64"), "uint32") >> 1, "int32")
    angle = f.cast((high * 2.0**-30 + f.cast(low, "float64") * 2.0**-61) * _HALF_PI, "float32")
    negative = f.let(f.bits(x) >> 31)  # all bits set, or none
    turned = f.bits(f.bits(angle) ^ (negative << 31), "float32")
    small = f.let(f.select(f.bits(bits, "float32") < _SMALL, 1.0, 0.0))
    rest = f.select(bits < 0x7F800000, turned, x - x)
    zero = f.const(0, "int32")
    return (f.let(f.select(small > 0.5, zero, (quadrant ^ negative) - negative)), f.let(f.select(small > 0.5, x, rest)))


def _turns(f: Formula, bits: PrimExpr) -> PrimExpr:
    """Return |x| times 2 / pi modulo 4, for |x| of at least 1/2, as a uint64 with 62 bits behind the point.

    Args:
        f: Where intermediate values are bound.
        bits: The bits of |x|, int32.
    """
    mantissa = f.let(f.cast((bits & 0x7FFFFF) | 0x800000, "uint64"))
    # The exponent of the mantissa's last bit, less that of a window that begins with the word of zeros.
    start = f.let((bits >> 23) - (150 - 30))
    word = f.let(start >> 5)
    shift = f.let(f.cast(start & 31, "uint64"))
    words = [f.let(_word(f, word, offset)) for offset in range(4)]
    pairs = [(words[i] << 32) | words[i + 1] for i in range(3)]
    window = [f.let((pair << shift) >> 32) for pair in pairs]
    products = ((mantissa * window[0]) << 32, mantissa * window[1], (mantissa * window[2]) >> 32)
    return f.let(products[0] + products[1] + products[2])


def _word(f: Formula, index: PrimExpr, offset: int) -> PrimExpr:
    """Return the word of 2 / pi at an index from 0 to 4, plus an offset, as a uint64."""
    word = f.const(_TWO_OVER_PI[offset], "uint64")
    for place in range(1, len(_TWO_OVER_PI) - 3):
        word = f.select(index == place, f.const(_TWO_OVER_PI[place + offset], "uint64"), word)
    return word
