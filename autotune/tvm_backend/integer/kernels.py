"""Quantised operators as tensor expressions.

An image has shape (N, H, W, C / b, b): the channels of a pixel lie together, in chunks of b = 16, or of 4 for an input
with few channels. Elements are unsigned bytes; the last chunk may have padding lanes, on which no result depends.

Scales, zero points and limits are arguments: layers of the same shapes are the same program, and tuned once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx

from autotune.tvm_backend.integer.intrinsics import Instructions
from autotune.tvm_backend.integer.schedules import DEPTHWISE_BLOCK, DOT_BLOCK, INTRINSIC, LEFT_ALONE, OUT, PAD, WINDOW

Expr = Any

LANES = 16
WORD = 4  # products that one instruction adds up
OPAQUE = 8  # TVM's number for an operator that is fused with no other


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution or a pooling: size of the output, strides, padding (top, left, bottom, right)."""

    size: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)

    def at(self, y: Expr, x: Expr, down: Expr, right: Expr) -> tuple[Expr, Expr]:
        """Return the place in the padded input of an element of the output and one of the kernel."""
        (step_y, step_x), (gap_y, gap_x) = self.strides, self.dilation
        return y * step_y + down * gap_y, x * step_x + right * gap_x


def rounded(value: Expr, zero: Expr) -> Expr:
    """A float rounded half to even, as ONNX asks, and moved to a zero point."""
    return tirx.round(value) + zero


def to_byte(value: Expr, low: Expr, high: Expr) -> Expr:
    """A float as an unsigned byte, not below `low` nor above `high`."""
    return te.max(te.min(value, high), low).astype("int32").astype("uint8")


def padded(data: Expr, window: Window, zero: Expr, *, right: int = 0) -> Expr:
    """An image with its zero point around it, and with `right` more columns."""
    batch, height, width, chunks, lanes = data.shape
    top, left, bottom, more = window.padding
    if not any((*window.padding, right)):
        return data

    def element(n: Expr, y: Expr, x: Expr, c: Expr, lane: Expr) -> Expr:
        inside = tirx.all(y >= top, y < top + height, x >= left, x < left + width)
        return tirx.if_then_else(inside, data[n, y - top, x - left, c, lane], zero)

    shape = (batch, height + top + bottom, width + left + more + right, chunks, lanes)
    return te.compute(shape, element, name=PAD, attrs=LEFT_ALONE)


def te_conv(
    data: Expr,
    weight: Expr,
    scale: Expr,
    bias: Expr,
    point: Expr,
    limits: Expr,
    *rest: Expr,
    window: Window,
    instructions: Instructions,
) -> Expr:
    """A convolution, requantised: clip(round((sum + bias) * scale) + zero).

    Args:
        data: The image (N, H, W, IC, b).
        weight: Signed bytes (OC, KH, KW, IC, b / 4, 16, 4).
        scale: Floats (OC, 16): scale of the input by that of the weight, divided by that of the output.
        bias: Integers (OC, 16). They make up for the zero point of the input.
        point: The zero point of the input, (1,).
        limits: Floats (3,): zero point, least and greatest value of the output.
        window: The geometry.
        rest: For an addition, the image that is added and its constants, as in `added`.

    Returns:
        The image (N, OH, OW, OC, 16).
    """
    source = padded(data, window, point[0])
    axes = [te.reduce_axis((0, weight.shape[at])) for at in (1, 2, 3, 4, 6)]
    down, right, chunk, word, byte = axes

    def product(n: Expr, y: Expr, x: Expr, c: Expr, lane: Expr) -> Expr:
        one = source[(n, *window.at(y, x, down, right), chunk, word * WORD + byte)].astype("int32")
        return te.sum(one * weight[c, down, right, chunk, word, lane, byte].astype("int32"), axis=axes)

    shape = (data.shape[0], *window.size, weight.shape[0], weight.shape[5])
    attrs: dict[str, Any] = {"schedule_rule": DOT_BLOCK, INTRINSIC: instructions.vector}
    if instructions.tiles and window.dilation[1] == 1:
        high, wide, inner = (int(extent) for extent in weight.shape[1:4])
        attrs[WINDOW] = [high, wide, inner, int(data.shape[4]), *window.strides, window.dilation[0]]
    sums = te.compute(shape, product, name=DOT_BLOCK, attrs=attrs)
    return _requantised(sums, scale, bias, limits, rest)


def te_depthwise(
    data: Expr,
    weight: Expr,
    scale: Expr,
    bias: Expr,
    point: Expr,
    limits: Expr,
    *rest: Expr,
    window: Window,
    instructions: Instructions,
) -> Expr:
    """A depthwise convolution, requantised; the arguments are those of `te_conv`, but for the weight.

    Args:
        weight: Signed bytes (C, KH, KW / 4, 16, 4): taps of a row in groups of four, the last filled with zeros.
    """
    taps = int(weight.shape[2]) * WORD
    reach = (window.size[1] - 1) * window.strides[1] + taps
    width = int(data.shape[2]) + window.padding[1] + window.padding[3]
    source = padded(data, window, point[0], right=max(reach - width, 0))
    down, group, tap = axes = [te.reduce_axis((0, weight.shape[at])) for at in (1, 2, 4)]

    def product(n: Expr, y: Expr, x: Expr, c: Expr, lane: Expr) -> Expr:
        one = source[(n, *window.at(y, x, down, group * WORD + tap), c, lane)].astype("int32")
        return te.sum(one * weight[c, down, group, lane, tap].astype("int32"), axis=axes)

    shape = (data.shape[0], *window.size, weight.shape[0], weight.shape[3])
    sums = te.compute(
        shape, product, name=DEPTHWISE_BLOCK, attrs={"schedule_rule": DEPTHWISE_BLOCK, INTRINSIC: instructions.vector}
    )
    return _requantised(sums, scale, bias, limits, rest)


def convolution_program(
    operands: Sequence[tuple[tuple[int, ...], str]], window: Window, instructions: Instructions, *, depthwise: bool
) -> tuple[Any, tuple[int, ...]]:
    """Return the program of a convolution and the shape of its result.

    Args:
        operands: Shapes and types of the operands of `te_conv` or `te_depthwise`.
        window: The geometry.
        instructions: Those that compute the product.
        depthwise: Whether it is `te_depthwise`.
    """
    kernel = te_depthwise if depthwise else te_conv
    arguments = [te.placeholder(shape, dtype, f"p{index}") for index, (shape, dtype) in enumerate(operands)]
    result = kernel(*arguments, window=window, instructions=instructions)
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([*arguments, result])}))
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
    program = schedule.mod["main"].without_attr("global_symbol").with_attr({"op_pattern": OPAQUE})
    return program, tuple(int(extent) for extent in result.shape)


def _requantised(sums: Expr, scale: Expr, bias: Expr, limits: Expr, rest: tuple[Expr, ...]) -> Expr:
    def element(*at: Expr) -> Expr:
        channel = at[-2:]
        value = (sums[at] + bias[channel]).astype("float32") * scale[channel]
        byte = te.max(te.min(rounded(value, limits[0]), limits[2]), limits[1])
        if rest:
            other, constants = rest
            return added(byte, other[at].astype("float32"), constants)
        return byte.astype("int32").astype("uint8")

    return te.compute(sums.shape, element, name=OUT, attrs=LEFT_ALONE)


def added(one: Expr, other: Expr, constants: Expr) -> Expr:
    """The sum of two quantised values, as ONNX Runtime computes it: one constant for the three zero points.

    Args:
        one, other: The values, as floats.
        constants: Floats (5,): factors of both, the constant, least and greatest value.
    """
    value = tirx.round(one * constants[0] + constants[2] + other * constants[1])
    return to_byte(value, constants[3], constants[4])
