"""Convolutions of channel-blocked tensors: the block, the packed weights, and the tensor expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import te, tirx, topi

from autotune.tvm_backend.expressions import constant_of, is_tensor_constant, plain_convolution, static_shape
from autotune.tvm_backend.types import Call, Expr, PrimExpr, TensorExpr

Array = npt.NDArray[Any]

PLAIN = 0  # the block of a tensor that is not packed
_MAX_PADDING = 1.25  # channels with padding, relative to channels without
NO_SCHEDULE_RULE = {"schedule_rule": "None"}  # MetaSchedule leaves the block where it is; a rule of ours may move it


def choose_block(channels: int, lanes: int, *, exact: bool = False) -> int:
    """Choose the block for a number of channels.

    The cost of a block is the number of vector operations for a pixel, with a penalty for padding lanes.

    Args:
        channels: How many channels there are.
        lanes: The largest block.
        exact: Whether the block must divide `channels`.

    Returns:
        The block with the least cost; PLAIN if no block fits.
    """

    def cost(block: int) -> tuple[float, int]:
        chunks = -(-channels // block)
        return chunks * block.bit_count() * (chunks * block / channels) ** 3, -block

    def fits(block: int) -> bool:
        filled = -(-channels // block) * block
        whole_vectors = block.bit_count() == 1 and filled <= _MAX_PADDING * channels
        return filled == channels or (whole_vectors and not exact)

    return min(filter(fits, range(max(lanes // 2, 1), lanes + 1)), key=cost, default=PLAIN)


def pack_channels(value: Array, block: int) -> Array:
    """Pack the channels of an array.

    Args:
        value: Of shape (N, C, H, W).
        block: Channels in a chunk, b.

    Returns:
        The array of shape (N, ceil(C / b), H, W, b). Lanes without a channel are zero.
    """
    batch, channels, height, width = value.shape
    missing = -channels % block
    filled = np.pad(value, ((0, 0), (0, missing), (0, 0), (0, 0))) if missing else value
    return np.transpose(filled.reshape(batch, -1, block, height, width), (0, 1, 3, 4, 2))


def pack_weight(value: Array, block_in: int, block_out: int) -> Array:
    """Pack the weights of a convolution.

    Args:
        value: Of shape (O, I, KH, KW).
        block_in: Input channels in a chunk, bi; PLAIN if the input is not packed.
        block_out: Output channels in a chunk, bo.

    Returns:
        The weights of shape (ceil(O / bo), ceil(I / bi), KH, KW, bi, bo), or (ceil(O / bo), I, KH, KW, bo) for a plain
        input. Lanes without a channel are zero.
    """
    rows = pack_channels(value.transpose(1, 0, 2, 3), block_out)  # (I, OC, KH, KW, bo)
    if block_in == PLAIN:
        return np.transpose(rows, (1, 0, 2, 3, 4))
    inputs, *rest = rows.shape
    packed = pack_channels(rows.reshape(1, inputs, 1, -1), block_in)  # (1, IC, 1, OC * KH * KW * bo, bi)
    return np.transpose(packed.reshape((-1, *rest, block_in)), (1, 0, 2, 3, 5, 4))


def packable(expr: Expr, channels: int) -> bool:
    """Return whether an operand still broadcasts to a tensor (N, C, H, W) correctly when both are packed."""
    shape = static_shape(expr)
    if is_tensor_constant(expr) and len(shape) <= 4:
        return bool(np.prod(shape) == 1) or shape[-3:-2] == (channels,)
    return len(shape) == 4 and shape[1] == channels


def pack_constant(expr: Expr, block: int) -> Expr:
    """Pack a packable constant. A single number gets shape (); otherwise the last three dimensions are packed."""
    value = expr.value.numpy()
    if value.size == 1:
        return constant(value.reshape(()), expr)
    return constant(pack_channels(value.reshape((1,) * (4 - value.ndim) + value.shape), block), expr)


def constant(value: Array, like: Expr) -> Expr:
    """Return an array as a Relax constant with the element type of another expression; a number has one axis.

    Such a number is an argument of its kernel. In the program, it would make another task of it.
    """
    return constant_of(np.atleast_1d(value), str(like.ty.dtype))


def te_convert(data: TensorExpr, channels: int, source: int, wanted: int) -> TensorExpr:
    """Convert a tensor from block `source` to block `wanted`. Either may be PLAIN."""
    batch = data.shape[0]
    height = data.shape[2]
    width = data.shape[3]

    def read(n: PrimExpr, c: PrimExpr, h: PrimExpr, w: PrimExpr) -> PrimExpr:
        return data[n, c // source, h, w, c % source] if source else data[n, c, h, w]

    def write(n: PrimExpr, chunk: PrimExpr, h: PrimExpr, w: PrimExpr, lane: PrimExpr) -> PrimExpr:
        c = chunk * wanted + lane
        value = read(n, c, h, w)
        zero = tirx.const(0, data.dtype)
        return tirx.if_then_else(c < channels, value, zero) if channels % wanted else value

    if wanted == PLAIN:
        return te.compute((batch, channels, height, width), read, name="unpack")
    return te.compute((batch, -(-channels // wanted), height, width, wanted), write, name="pack")


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution or a pooling.

    Attributes:
        size: The height and the width of the output.
        strides: Down and right.
        padding: Top, left, bottom, right.
        dilation: Down and right.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)

    @classmethod
    def of(cls, call: Call) -> Window:
        """Return the geometry of a Relax call of a convolution or a pooling."""
        attrs = (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
        return cls(static_shape(call)[2:], *(tuple(int(item) for item in values) for values in attrs))

    def padded(self, data: TensorExpr) -> TensorExpr:
        """Return a tensor (N, C, H, W, ...) with zeros around its height and width."""
        if not any(self.padding):
            return data
        top, left, bottom, right = self.padding
        more = [0] * (len(data.shape) - 4)
        return topi.nn.pad(data, [0, 0, top, left, *more], [0, 0, bottom, right, *more], name="data_pad")

    def at(self, height: PrimExpr, width: PrimExpr, down: PrimExpr, right: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Return which element of the padded input is multiplied with an element of the kernel.

        Args:
            height: The row of the output element.
            width: The column of the output element.
            down: The row of the kernel element.
            right: The column of the kernel element.

        Returns:
            The row and the column in the padded input.
        """
        (step_y, step_x) = self.strides
        (gap_y, gap_x) = self.dilation
        return height * step_y + down * gap_y, width * step_x + right * gap_x


def te_pad(data: TensorExpr, start: tuple[int, ...], size: tuple[int, int], *, name: str) -> TensorExpr:
    """Put zeros around the height and the width of a packed tensor, in a block that no rule of MetaSchedule moves.

    Args:
        data: Of shape (N, C, H, W, b).
        start: How many zeros to put above and to the left.
        size: The height and the width of the result.
    """
    batch, chunks, height, width, lanes = data.shape
    top, left = start

    def element(n: PrimExpr, c: PrimExpr, h: PrimExpr, w: PrimExpr, lane: PrimExpr) -> PrimExpr:
        inside = tirx.all(h >= top, h < top + height, w >= left, w < left + width)
        return tirx.if_then_else(inside, data[n, c, h - top, w - left, lane], tirx.const(0, data.dtype))

    return te.compute((batch, chunks, *size, lanes), element, name=name, attrs=NO_SCHEDULE_RULE)


def te_conv(data: TensorExpr, kernel: TensorExpr, geometry: Window) -> TensorExpr:
    """Express a convolution of packed tensors.

    Args:
        data: The input of shape (N, G * IC, H, W, bi), where G is the number of groups; (N, I, H, W) if it is plain.
        kernel: The weights of shape (OC, IC, KH, KW, bi, bo); (OC, I, KH, KW, bo) for a plain input.

    Returns:
        The output of shape (N, OC, OH, OW, bo).
    """
    padded = geometry.padded(data)
    inner = kernel.shape[1]
    groups = int(data.shape[1]) // int(inner)
    per_group = int(kernel.shape[0]) // groups
    axes = [te.reduce_axis((0, size)) for size in kernel.shape[1:-1]]
    chunk, down, right, *lane = axes

    def element(n: PrimExpr, oc: PrimExpr, h: PrimExpr, w: PrimExpr, o: PrimExpr) -> PrimExpr:
        first = oc // per_group * inner if groups > 1 else 0
        place = (n, first + chunk, *geometry.at(h, w, down, right), *lane)
        tap = (oc, *axes, o)
        return te.sum(padded[place] * kernel[tap], axis=axes)

    shape = (data.shape[0], kernel.shape[0], *geometry.size, kernel.shape[-1])
    return te.compute(shape, element, name="conv2d_NCHWc", tag="conv2d_NCHWc")


def te_depthwise(data: TensorExpr, kernel: TensorExpr, geometry: Window) -> TensorExpr:
    """Express a depthwise convolution of packed tensors.

    Args:
        data: The input of shape (N, C, H, W, b).
        kernel: The weights of shape (C, KH, KW, b).

    Returns:
        The output of shape (N, C, OH, OW, b).
    """
    padded = geometry.padded(data)
    down, right = axes = [te.reduce_axis((0, size)) for size in kernel.shape[1:-1]]

    def element(n: PrimExpr, chunk: PrimExpr, h: PrimExpr, w: PrimExpr, lane: PrimExpr) -> PrimExpr:
        place = (n, chunk, *geometry.at(h, w, down, right), lane)
        tap = (chunk, *axes, lane)
        return te.sum(padded[place] * kernel[tap], axis=axes)

    shape = (*data.shape[:2], *geometry.size, data.shape[4])
    return te.compute(shape, element, name="depthwise_conv2d_NCHWc", tag="depthwise_conv2d_NCHWc")


def has_disjoint_windows(value: Expr) -> bool:
    """Return whether a value is an NCHW transposed convolution with constant IOHW weights and separate windows.

    U-Nets and text detectors enlarge images so. TVM computes a transposed convolution as a convolution of an image with
    zeros between its pixels; with strides of two, three in four multiplications are by such a zero. If the strides are
    as large as the kernel, every output element depends on one pixel of the input, and the sum over its channels is all
    there is to compute.
    """
    if not plain_convolution(value, "relax.nn.conv2d_transpose", channels="IO"):
        return False
    attrs = value.attrs
    kernel = static_shape(value.args[1])[2:]
    padded = any(map(int, (*attrs.padding, *attrs.output_padding)))
    whole = all(int(item) == 1 for item in (*attrs.dilation, attrs.groups))
    strides = tuple(int(item) for item in attrs.strides)
    return strides == kernel and whole and not padded


def te_conv_transpose(data: TensorExpr, kernel: TensorExpr) -> TensorExpr:
    """Express a transposed convolution of packed tensors.

    Args:
        data: The input of shape (N, IC, H, W, bi); (N, I, H, W) if it is plain.
        kernel: The weights of shape (OC, IC, KH, KW, bi, bo); (OC, I, KH, KW, bo) for a plain input.

    Returns:
        The output of shape (N, OC, H * KH, W * KW, bo).
    """
    down = int(kernel.shape[2])
    right = int(kernel.shape[3])
    chunk, *lane = axes = [te.reduce_axis((0, size)) for size in (kernel.shape[1], *kernel.shape[4:-1])]

    def element(n: PrimExpr, oc: PrimExpr, h: PrimExpr, w: PrimExpr, o: PrimExpr) -> PrimExpr:
        place = (n, chunk, h // down, w // right, *lane)
        tap = (oc, chunk, h % down, w % right, *lane, o)
        return te.sum(data[place] * kernel[tap], axis=axes)

    shape = (data.shape[0], kernel.shape[0], data.shape[2] * down, data.shape[3] * right, kernel.shape[-1])
    return te.compute(shape, element, name="conv2d_transpose_NCHWc")


def as_channels(weight: Array) -> Array:
    """Return weights (I, O, KH, KW) as those of a 1x1 convolution, (O * KH * KW, I, 1, 1)."""
    return weight.reshape(weight.shape[0], -1, 1, 1).transpose(1, 0, 2, 3)


def te_depth_to_space(data: TensorExpr, shape: tuple[int, ...]) -> TensorExpr:
    """Express the output of a transposed convolution by that of the 1x1 convolution of `as_channels`.

    Args:
        data: What the 1x1 convolution computes, of shape (N, OC, H, W, bo).
        shape: That of the output, (N, O, H * KH, W * KW).
    """
    down = shape[2] // int(data.shape[2])
    right = shape[3] // int(data.shape[3])
    block = int(data.shape[4])

    def element(n: PrimExpr, o: PrimExpr, h: PrimExpr, w: PrimExpr) -> PrimExpr:
        channel = (o * down + h % down) * right + w % right
        return data[n, channel // block, h // down, w // right, channel % block]

    return te.compute(shape, element, name="spread")
