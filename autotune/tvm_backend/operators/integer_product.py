"""Quantised operators as tensor expressions.

An image has shape (N, H, W, C / b, b): the channels of a pixel lie together, in chunks of b = 16, or of 4 for an input
with few channels. Elements are unsigned bytes; the last chunk may have padding lanes, on which no result depends.

Scales, zero points and limits are arguments: layers of the same shapes are the same program, and tuned once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from autotune.tvm_backend.intrinsics.amx_and_vector_tiles import (
    DEPTHWISE_BLOCK,
    INTRINSIC,
    LEFT_ALONE,
    OUT,
)
from autotune.tvm_backend.isa.available import Instructions
from autotune.tvm_backend.isa.values import WORD
from autotune.tvm_backend.operators.chunked_product import ChunkedProduct, padded
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.operators.element_types import rounded, to_byte
from autotune.tvm_backend.programs import unscheduled
from autotune.tvm_backend.types import PrimExpr, PrimFunc, TensorExpr


@dataclass(frozen=True)
class DepthwiseProduct:
    """A depthwise convolution of bytes.

    Attributes:
        window: The geometry.
        instructions: Those that may compute it.
    """

    window: Window
    instructions: Instructions
    offset: ClassVar[int] = 0  # what is taken from each element of the data, as `ChunkedProduct.offset`

    def sums(self, data: TensorExpr, weight: TensorExpr, zero: PrimExpr) -> TensorExpr:
        """Return the sums (N, OH, OW, C, 16) as a tensor expression.

        Args:
            data: The image (N, H, W, C, 16).
            weight: Signed bytes (C, KH, KW / 4, 16, 4): taps of a row in groups of four, the last filled with zeros.
            zero: The zero point of the data, which is the padding.
        """
        window = self.window
        taps = int(weight.shape[2]) * WORD
        reach = (window.size[1] - 1) * window.strides[1] + taps
        width = int(data.shape[2]) + window.padding[1] + window.padding[3]
        source = padded(data, window, zero, right=max(reach - width, 0))
        down, group, tap = axes = [te.reduce_axis((0, weight.shape[axis])) for axis in (1, 2, 4)]

        def product(n: PrimExpr, y: PrimExpr, x: PrimExpr, c: PrimExpr, lane: PrimExpr) -> PrimExpr:
            one = source[(n, *window.at(y, x, down, group * WORD + tap), c, lane)].astype("int32")
            return te.sum(one * weight[c, down, group, lane, tap].astype("int32"), axis=axes)

        shape = (data.shape[0], *window.size, weight.shape[0], weight.shape[3])
        attributes = {"schedule_rule": DEPTHWISE_BLOCK, INTRINSIC: self.instructions.vector}
        return te.compute(shape, product, name=DEPTHWISE_BLOCK, attrs=attributes)


ByteProduct = ChunkedProduct | DepthwiseProduct


def requantised(
    sums: TensorExpr, scale: TensorExpr, bias: TensorExpr, limits: TensorExpr, *rest: TensorExpr
) -> TensorExpr:
    """Sums as bytes: clip(round((sum + bias) * scale) + zero).

    Args:
        sums: Those of a `ChunkedProduct`.
        scale: Floats (OC, 16): scale of the input by that of the weight, divided by that of the output.
        bias: Integers (OC, 16). They make up for the zero point of the input.
        limits: Floats (3,): zero point, least and greatest value of the output.
        rest: For an addition, the image that is added and its constants, as in `added`. The constants stand first where
            the image is the first operand of the addition.
    """

    def element(*at: PrimExpr) -> PrimExpr:
        channel = at[-2:]
        value = (sums[at] + bias[channel]).astype("float32") * scale[channel]
        if not rest:
            return to_byte(value, limits[0], limits[1], limits[2])
        byte = te.max(te.min(rounded(value, limits[0]), limits[2]), limits[1])
        if len(rest[0].shape) == 1:
            constants, other = rest
            return added(other[at].astype("float32"), byte, constants)
        other, constants = rest
        return added(byte, other[at].astype("float32"), constants)

    return te.compute(sums.shape, element, name=OUT, attrs=LEFT_ALONE)


def scaled(
    sums: TensorExpr, point: PrimExpr, totals: TensorExpr, step: TensorExpr, scale: TensorExpr, bias: TensorExpr
) -> TensorExpr:
    """Sums as floats: (sum - point * totals) * (step * scale) + bias.

    Args:
        sums: Those of a `ChunkedProduct`.
        point: The zero point of the data, as a 32-bit integer.
        totals: Integers (OC, 16): the sums of the weights.
        step: The scale of the data, (1,).
        scale: Floats (OC, 16): that of the weights.
        bias: Floats (OC, 16).
    """

    def element(*at: PrimExpr) -> PrimExpr:
        channel = at[-2:]
        whole = (sums[at] - point * totals[channel]).astype("float32")
        return whole * (step[0] * scale[channel]) + bias[channel]

    return te.compute(sums.shape, element, name=OUT, attrs=LEFT_ALONE)


def centred(sums: TensorExpr, point: PrimExpr, totals: TensorExpr) -> TensorExpr:
    """Sums of products around the zero point of the data: sum - point * totals, as for `scaled`."""

    def element(*at: PrimExpr) -> PrimExpr:
        return sums[at] - point * totals[at[-2:]]

    return te.compute(sums.shape, element, name=OUT, attrs=LEFT_ALONE)


# What a product becomes, by the type of the result: from the sums, the zero point and further operands.
_RESULTS: Mapping[str, Callable[..., TensorExpr]] = {
    "uint8": lambda sums, point, *rest: requantised(sums, *rest),
    "float32": scaled,
    "int32": centred,
}


def product_program(
    product: ByteProduct, operands: Sequence[tuple[tuple[int, ...], str]], dtype: str
) -> tuple[PrimFunc, tuple[int, ...]]:
    """Return the program of a product, and the shape of its result (N, OH, OW, OC, 16).

    Args:
        product: What is multiplied.
        operands: Shapes and types of data, weight and zero point, and of what the result takes beside them.
        dtype: Of the result: uint8 for `requantised`, float32 for `scaled`, int32 for `centred`.
    """
    arguments = [te.placeholder(shape, kind, f"p{index}") for index, (shape, kind) in enumerate(operands)]
    data, weight, point, *rest = arguments
    zero = point[0].astype("int32") - product.offset if product.offset else point[0].astype("int32")
    result = _RESULTS[dtype](product.sums(data, weight, point[0]), zero, *rest)
    return unscheduled([*arguments, result]), tuple(int(extent) for extent in result.shape)


def _multiply_add(one: PrimExpr, other: PrimExpr, more: PrimExpr) -> PrimExpr:
    return tirx.call_intrin("float32", "tirx.fma", one, other, more)


def added(one: PrimExpr, other: PrimExpr, constants: TensorExpr) -> PrimExpr:
    """The sum of two quantised values, as ONNX Runtime computes it: one constant for the three zero points.

    It adds each product in one rounding, the second operand first, on CPUs that can.

    Args:
        one, other: The values, as floats.
        constants: Floats (5,): factors of both, the constant, least and greatest value.
    """
    value = _multiply_add(one, constants[0], _multiply_add(other, constants[1], constants[2]))
    return to_byte(value, tirx.const(0.0, "float32"), constants[3], constants[4])
