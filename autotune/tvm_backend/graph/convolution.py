"""Convolutions of channel-blocked tensors: their windows, their packed weights and their tensor expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import te, topi

from autotune.tvm_backend.graph.rewrite import static_shape

Array = npt.NDArray[Any]

PLAIN = 0  # the block of a tensor that is not packed


def pack_channels(value: Array, block: int) -> Array:
    """(N, C, H, W) as (N, ceil(C / b), H, W, b), filled up with zeros."""
    batch, channels, height, width = value.shape
    filled = np.pad(value, ((0, 0), (0, -channels % block), (0, 0), (0, 0)))
    return np.transpose(filled.reshape(batch, -1, block, height, width), (0, 1, 3, 4, 2))


def pack_weight(value: Array, block_in: int, block_out: int) -> Array:
    """(O, I, KH, KW) as (OC, IC, KH, KW, bi, bo), filled up with zeros, or as (OC, I, KH, KW, bo)."""
    rows = pack_channels(value.transpose(1, 0, 2, 3), block_out)  # (I, OC, KH, KW, bo)
    if block_in == PLAIN:
        return np.transpose(rows, (1, 0, 2, 3, 4))
    inputs, *rest = rows.shape
    packed = pack_channels(rows.reshape(1, inputs, 1, -1), block_in)  # (1, IC, 1, OC * KH * KW * bo, bi)
    return np.transpose(packed.reshape((-1, *rest, block_in)), (1, 0, 2, 3, 5, 4))


@dataclass(frozen=True)
class Window:
    """Output height and width, strides, padding (top, left, bottom, right) and dilation of a convolution."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, call: Any) -> Window:
        attrs = (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
        return cls(static_shape(call)[2:], *(tuple(int(item) for item in values) for values in attrs))

    def padded(self, data: Any) -> Any:
        """(N, C, H, W, ...) with zeros around height and width."""
        if not any(self.padding):
            return data
        top, left, bottom, right = self.padding
        more = [0] * (len(data.shape) - 4)
        return topi.nn.pad(data, [0, 0, top, left, *more], [0, 0, bottom, right, *more], name="data_pad")

    def at(self, height: Any, width: Any, down: Any, right: Any) -> tuple[Any, Any]:
        """Where in the padded input the output at (height, width) meets the kernel at (down, right)."""
        (step_y, step_x), (gap_y, gap_x) = self.strides, self.dilation
        return height * step_y + down * gap_y, width * step_x + right * gap_x


def te_conv(data: Any, kernel: Any, window: Window) -> Any:
    """data (N, G * IC, H, W, bi) and kernel (OC, IC, KH, KW, bi, bo) give (N, OC, OH, OW, bo).

    Plain data (N, I, H, W) goes with a kernel (OC, I, KH, KW, bo).
    """
    padded, inner = window.padded(data), kernel.shape[1]
    groups = int(data.shape[1]) // int(inner)
    per_group = int(kernel.shape[0]) // groups
    axes = [te.reduce_axis((0, size)) for size in kernel.shape[1:-1]]
    chunk, down, right, *lane = axes

    def element(n: Any, oc: Any, h: Any, w: Any, o: Any) -> Any:
        first = oc // per_group * inner if groups > 1 else 0
        at, tap = (n, first + chunk, *window.at(h, w, down, right), *lane), (oc, *axes, o)
        return te.sum(padded[at] * kernel[tap], axis=axes)

    shape = (data.shape[0], kernel.shape[0], *window.size, kernel.shape[-1])
    return te.compute(shape, element, name="conv2d_NCHWc", tag="conv2d_NCHWc")


def te_depthwise(data: Any, kernel: Any, window: Window) -> Any:
    """data (N, CC, H, W, b) and kernel (CC, KH, KW, b) give (N, CC, OH, OW, b)."""
    padded = window.padded(data)
    down, right = axes = [te.reduce_axis((0, size)) for size in kernel.shape[1:-1]]

    def element(n: Any, chunk: Any, h: Any, w: Any, lane: Any) -> Any:
        at, tap = (n, chunk, *window.at(h, w, down, right), lane), (chunk, *axes, lane)
        return te.sum(padded[at] * kernel[tap], axis=axes)

    shape = (*data.shape[:2], *window.size, data.shape[4])
    return te.compute(shape, element, name="depthwise_conv2d_NCHWc", tag="depthwise_conv2d_NCHWc")
