"""Express convolutions of channel-blocked tensors as tensor expressions, with packed weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import te, tirx, topi

from autotune.tvm_backend.graph.rewrite import static_shape

Array = npt.NDArray[Any]

PLAIN = 0  # the block of a tensor that is not packed
NO_SCHEDULE_RULE = {"schedule_rule": "None"}  # MetaSchedule leaves the block where it is; a rule of ours may move it


def pack_channels(value: Array, block: int) -> Array:
    """Pack the channels of an array.

    Args:
        value: Of shape (N, C, H, W).
        block: Channels in a chunk, b.

    Returns:
        The array of shape (N, ceil(C / b), H, W, b). Lanes without a channel are zero.
    """
    batch, channels, height, width = value.shape
    filled = np.pad(value, ((0, 0), (0, -channels % block), (0, 0), (0, 0)))
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


def te_convert(data: Any, channels: int, source: int, wanted: int) -> Any:
    """Convert a tensor from block `source` to block `wanted`. Either may be PLAIN."""
    batch, height, width = data.shape[0], data.shape[2], data.shape[3]

    def read(n: Any, c: Any, h: Any, w: Any) -> Any:
        return data[n, c // source, h, w, c % source] if source else data[n, c, h, w]

    def write(n: Any, chunk: Any, h: Any, w: Any, lane: Any) -> Any:
        c = chunk * wanted + lane
        value, zero = read(n, c, h, w), tirx.const(0, data.dtype)
        return tirx.if_then_else(c < channels, value, zero) if channels % wanted else value

    if wanted == PLAIN:
        return te.compute((batch, channels, height, width), read, name="unpack")
    return te.compute((batch, -(-channels // wanted), height, width, wanted), write, name="pack")


@dataclass(frozen=True)
class ConvolutionGeometry:
    """The geometry of a convolution.

    Attributes:
        size: The height and the width of the output.
        strides: Down and right.
        padding: Top, left, bottom, right.
        dilation: Down and right.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, call: Any) -> ConvolutionGeometry:
        """Return the geometry of a Relax call of a convolution."""
        attrs = (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
        return cls(static_shape(call)[2:], *(tuple(int(item) for item in values) for values in attrs))

    def padded(self, data: Any) -> Any:
        """Return a tensor (N, C, H, W, ...) with zeros around its height and width."""
        if not any(self.padding):
            return data
        top, left, bottom, right = self.padding
        more = [0] * (len(data.shape) - 4)
        return topi.nn.pad(data, [0, 0, top, left, *more], [0, 0, bottom, right, *more], name="data_pad")

    def at(self, height: Any, width: Any, down: Any, right: Any) -> tuple[Any, Any]:
        """Return which element of the padded input is multiplied with an element of the kernel.

        Args:
            height: The row of the output element.
            width: The column of the output element.
            down: The row of the kernel element.
            right: The column of the kernel element.

        Returns:
            The row and the column in the padded input.
        """
        (step_y, step_x), (gap_y, gap_x) = self.strides, self.dilation
        return height * step_y + down * gap_y, width * step_x + right * gap_x


def te_pad(data: Any, start: tuple[int, ...], size: tuple[int, int], *, name: str) -> Any:
    """Put zeros around the height and the width of a packed tensor, in a block that no rule of MetaSchedule moves.

    Args:
        data: Of shape (N, C, H, W, b).
        start: How many zeros to put above and to the left.
        size: The height and the width of the result.
        name: Of the block.
    """
    batch, chunks, height, width, lanes = data.shape
    top, left = start

    def element(n: Any, c: Any, h: Any, w: Any, lane: Any) -> Any:
        inside = tirx.all(h >= top, h < top + height, w >= left, w < left + width)
        return tirx.if_then_else(inside, data[n, c, h - top, w - left, lane], tirx.const(0, data.dtype))

    return te.compute((batch, chunks, *size, lanes), element, name=name, attrs=NO_SCHEDULE_RULE)


def te_conv(data: Any, kernel: Any, geometry: ConvolutionGeometry) -> Any:
    """Express a convolution of packed tensors.

    Args:
        data: The input of shape (N, G * IC, H, W, bi), where G is the number of groups; (N, I, H, W) if it is plain.
        kernel: The weights of shape (OC, IC, KH, KW, bi, bo); (OC, I, KH, KW, bo) for a plain input.
        geometry: The geometry of the convolution.

    Returns:
        The output of shape (N, OC, OH, OW, bo).
    """
    padded, inner = geometry.padded(data), kernel.shape[1]
    groups = int(data.shape[1]) // int(inner)
    per_group = int(kernel.shape[0]) // groups
    axes = [te.reduce_axis((0, size)) for size in kernel.shape[1:-1]]
    chunk, down, right, *lane = axes

    def element(n: Any, oc: Any, h: Any, w: Any, o: Any) -> Any:
        first = oc // per_group * inner if groups > 1 else 0
        at, tap = (n, first + chunk, *geometry.at(h, w, down, right), *lane), (oc, *axes, o)
        return te.sum(padded[at] * kernel[tap], axis=axes)

    shape = (data.shape[0], kernel.shape[0], *geometry.size, kernel.shape[-1])
    return te.compute(shape, element, name="conv2d_NCHWc", tag="conv2d_NCHWc")


def te_depthwise(data: Any, kernel: Any, geometry: ConvolutionGeometry) -> Any:
    """Express a depthwise convolution of packed tensors.

    Args:
        data: The input of shape (N, C, H, W, b).
        kernel: The weights of shape (C, KH, KW, b).
        geometry: The geometry of the convolution.

    Returns:
        The output of shape (N, C, OH, OW, b).
    """
    padded = geometry.padded(data)
    down, right = axes = [te.reduce_axis((0, size)) for size in kernel.shape[1:-1]]

    def element(n: Any, chunk: Any, h: Any, w: Any, lane: Any) -> Any:
        at, tap = (n, chunk, *geometry.at(h, w, down, right), lane), (chunk, *axes, lane)
        return te.sum(padded[at] * kernel[tap], axis=axes)

    shape = (*data.shape[:2], *geometry.size, data.shape[4])
    return te.compute(shape, element, name="depthwise_conv2d_NCHWc", tag="depthwise_conv2d_NCHWc")
