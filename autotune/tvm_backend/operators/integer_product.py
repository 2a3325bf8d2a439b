"""Quantised operators as tensor expressions.

An image has shape (N, H, W, C / b, b): the channels of a pixel lie together, in chunks of b = 16, or of 4 for an input
with few channels. Elements are unsigned bytes; the last chunk may have padding lanes, on which no result depends.

Scales, zero points and limits are arguments: layers of the same shapes are the same program, and tuned once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from autotune.tvm_backend.integer.intrinsics import Instructions, channel_at
from autotune.tvm_backend.integer.schedules import DEPTHWISE_BLOCK, DOT_BLOCK, INTRINSIC, LEFT_ALONE, OUT, PAD, WINDOW
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.programs import unscheduled
from autotune.tvm_backend.types import PrimExpr, PrimFunc, TensorExpr

LEVELS = 256  # values of a byte
LANES = 16
WORD = 4  # products that one instruction adds up
_WHOLE = 12582912.0  # 1.5 * 2^23
_WHOLE_BITS = 0x4B400000  # of that float


def rounded(value: PrimExpr, zero: PrimExpr) -> PrimExpr:
    """A float rounded half to even, as ONNX asks, and moved to a zero point."""
    return tirx.round(value) + zero


def to_byte(value: PrimExpr, zero: PrimExpr, low: PrimExpr, high: PrimExpr) -> PrimExpr:
    """A float as an unsigned byte: rounded half to even, moved to a zero point, not below `low` nor above `high`.

    The sum with 1.5 * 2^23 has the whole number in its last bits. That takes fewer instructions than to round and to
    convert, and a kernel that writes many bytes for few products spends most of its time on these.
    """
    inside = te.max(te.min(value, high - zero), low - zero)
    bits = tirx.reinterpret("int32", inside + tirx.const(_WHOLE, "float32"))
    return (bits - tirx.const(_WHOLE_BITS, "int32") + zero.astype("int32")).astype("uint8")


def padded(data: TensorExpr, window: Window, zero: PrimExpr, *, right: int = 0, words: bool = False) -> TensorExpr:
    """An image with its zero point around it, and with `right` more columns; as 16-bit words if so asked."""
    batch, height, width, chunks, lanes = data.shape
    top, left, bottom, more = window.padding
    is_wider = any((*window.padding, right))
    if not is_wider and not words:
        return data

    def element(n: PrimExpr, y: PrimExpr, x: PrimExpr, c: PrimExpr, lane: PrimExpr) -> PrimExpr:
        inside = tirx.all(y >= top, y < top + height, x >= left, x < left + width)
        value = data[n, y - top, x - left, c, lane]
        value = tirx.if_then_else(inside, value, zero) if is_wider else value
        return value.astype("int16") if words else value

    shape = (batch, height + top + bottom, width + left + more + right, chunks, lanes)
    return te.compute(shape, element, name=PAD, attrs=LEFT_ALONE)


@dataclass(frozen=True)
class Grouping:
    """Which chunks of the input a chunk of the output depends on.

    Attributes:
        outer, inner: Channels of the output and of the input in a group; 0 for one group of all.
        chunks: Chunks of the input that one chunk of the output depends on.
        parts: Signed bytes that a weight is the sum of. Weights with a zero point may need two or three.
    """

    outer: int
    inner: int
    chunks: int
    parts: int = 1

    def chunk(self, output: PrimExpr, index: PrimExpr, all_chunks: int, lanes: int) -> PrimExpr:
        """Return the chunk of the input for a chunk of the output and an index into its weights."""
        inside = index if self.parts == 1 else tirx.indexmod(index, self.chunks)
        if not self.outer or self.chunks == all_chunks:
            return inside
        first = tirx.indexdiv(tirx.indexdiv(output * LANES, self.outer) * self.inner, lanes)
        return tirx.min(first, all_chunks - self.chunks) + inside


@dataclass(frozen=True)
class Product:
    """What a kernel multiplies and how.

    Attributes:
        window: The geometry.
        instructions: Those that may compute it.
        grouping: Which channels are multiplied; None for a depthwise convolution.
    """

    window: Window
    instructions: Instructions
    grouping: Grouping | None

    def sums(self, data: TensorExpr, weight: TensorExpr, point: TensorExpr) -> TensorExpr:
        """Return the sums of products (N, OH, OW, OC, 16) as a tensor expression.

        Args:
            data: The image (N, H, W, IC, b).
            weight: Signed bytes, as `packing` packs them.
            point: The zero point of the data, (1,), which is the padding.
        """
        if self.grouping is None:
            return self._depthwise(data, weight, point)
        return self._dense(data, weight, point, self.grouping)

    def _dense(self, data: TensorExpr, weight: TensorExpr, point: TensorExpr, grouping: Grouping) -> TensorExpr:
        """Weights are (OC, KH, KW, IC, b / 4, 16, 4)."""
        words = self.instructions.words
        source = padded(data, self.window, point[0], words=words)
        axes = [te.reduce_axis((0, weight.shape[axis])) for axis in (1, 2, 3, 4, 6)]
        down, right, chunk, word, byte = axes
        all_chunks = int(data.shape[3])
        lanes = int(data.shape[4])

        def product(n: PrimExpr, y: PrimExpr, x: PrimExpr, c: PrimExpr, lane: PrimExpr) -> PrimExpr:
            place = grouping.chunk(c, chunk, all_chunks, lanes)
            channel = word * WORD + (channel_at(byte) if words else byte)
            one = source[(n, *self.window.at(y, x, down, right), place, channel)].astype("int32")
            return te.sum(one * weight[c, down, right, chunk, word, lane, byte].astype("int32"), axis=axes)

        shape = (data.shape[0], *self.window.size, weight.shape[0], weight.shape[5])
        return te.compute(shape, product, name=DOT_BLOCK, attrs=self._dense_attributes(weight, all_chunks, lanes))

    def _dense_attributes(self, weight: TensorExpr, all_chunks: int, lanes: int) -> dict[str, Any]:
        attributes: dict[str, Any] = {"schedule_rule": DOT_BLOCK, INTRINSIC: self.instructions.vector}
        high, wide, chunks = (int(extent) for extent in weight.shape[1:4])
        if self.instructions.tiles and self.window.dilation[1] == 1 and chunks == all_chunks:
            geometry = [high, wide, chunks, lanes, *self.window.strides, self.window.dilation[0]]
            attributes[WINDOW] = geometry
        return attributes

    def _depthwise(self, data: TensorExpr, weight: TensorExpr, point: TensorExpr) -> TensorExpr:
        """Weights are (C, KH, KW / 4, 16, 4): taps of a row in groups of four, the last filled with zeros."""
        window = self.window
        taps = int(weight.shape[2]) * WORD
        reach = (window.size[1] - 1) * window.strides[1] + taps
        width = int(data.shape[2]) + window.padding[1] + window.padding[3]
        source = padded(data, window, point[0], right=max(reach - width, 0))
        down, group, tap = axes = [te.reduce_axis((0, weight.shape[axis])) for axis in (1, 2, 4)]

        def product(n: PrimExpr, y: PrimExpr, x: PrimExpr, c: PrimExpr, lane: PrimExpr) -> PrimExpr:
            one = source[(n, *window.at(y, x, down, group * WORD + tap), c, lane)].astype("int32")
            return te.sum(one * weight[c, down, group, lane, tap].astype("int32"), axis=axes)

        shape = (data.shape[0], *window.size, weight.shape[0], weight.shape[3])
        attributes = {"schedule_rule": DEPTHWISE_BLOCK, INTRINSIC: self.instructions.vector}
        return te.compute(shape, product, name=DEPTHWISE_BLOCK, attrs=attributes)


def requantised(
    sums: TensorExpr, scale: TensorExpr, bias: TensorExpr, limits: TensorExpr, *rest: TensorExpr
) -> TensorExpr:
    """Sums as bytes: clip(round((sum + bias) * scale) + zero).

    Args:
        sums: Those of a `Product`.
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
    sums: TensorExpr, point: TensorExpr, totals: TensorExpr, step: TensorExpr, scale: TensorExpr, bias: TensorExpr
) -> TensorExpr:
    """Sums as floats: (sum - point * totals) * (step * scale) + bias.

    Args:
        sums: Those of a `Product`.
        point: The zero point of the data, (1,).
        totals: Integers (OC, 16): the sums of the weights.
        step: The scale of the data, (1,).
        scale: Floats (OC, 16): that of the weights.
        bias: Floats (OC, 16).
    """

    def element(*at: PrimExpr) -> PrimExpr:
        channel = at[-2:]
        whole = (sums[at] - point[0].astype("int32") * totals[channel]).astype("float32")
        return whole * (step[0] * scale[channel]) + bias[channel]

    return te.compute(sums.shape, element, name=OUT, attrs=LEFT_ALONE)


def centred(sums: TensorExpr, point: TensorExpr, totals: TensorExpr) -> TensorExpr:
    """Sums of products around the zero point of the data: sum - point * totals, as for `scaled`."""

    def element(*at: PrimExpr) -> PrimExpr:
        return sums[at] - point[0].astype("int32") * totals[at[-2:]]

    return te.compute(sums.shape, element, name=OUT, attrs=LEFT_ALONE)


# What a product becomes, by the type of the result: from the sums, the zero point and further operands.
_RESULTS: Mapping[str, Callable[..., TensorExpr]] = {
    "uint8": lambda sums, point, *rest: requantised(sums, *rest),
    "float32": scaled,
    "int32": centred,
}


def product_program(
    product: Product, operands: Sequence[tuple[tuple[int, ...], str]], dtype: str
) -> tuple[PrimFunc, tuple[int, ...]]:
    """Return the program of a product, and the shape of its result (N, OH, OW, OC, 16).

    Args:
        product: What is multiplied.
        operands: Shapes and types of data, weight and zero point, and of what the result takes beside them.
        dtype: Of the result: uint8 for `requantised`, float32 for `scaled`, int32 for `centred`.
    """
    arguments = [te.placeholder(shape, kind, f"p{index}") for index, (shape, kind) in enumerate(operands)]
    data, weight, point, *rest = arguments
    result = _RESULTS[dtype](product.sums(data, weight, point), point, *rest)
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
