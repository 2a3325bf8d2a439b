"""Pack the constants of integer convolutions and products for the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.integer.kernels import LANES, WORD
from autotune.tvm_backend.integer.quantity import Quantity, ScaledConstant

Array = npt.NDArray[Any]
_NARROW = 64


@dataclass(frozen=True)
class PackedProduct:
    """The constants of a convolution: packed weights, factors (OC, 16), sums to add (OC, 16).

    Attributes:
        narrow: Whether all weights lie in -64..63.
    """

    weight: Array
    scale: Array
    bias: Array
    narrow: bool


def pack_convolution(
    weight: ScaledConstant, bias: Array, data: Quantity, result: Quantity, lanes: int
) -> PackedProduct:
    """Pack the constants of a convolution.

    Args:
        weight: Of shape (O, I, KH, KW).
        bias: Integers (O,), in units of the scale of the input by that of the weight.
        data: The quantity of the input.
        result: That of the output.
        lanes: Channels in a chunk of the input.
    """
    values = _filled(weight.integers, 0, LANES)
    values = _filled(values, 1, lanes)
    outputs, inputs, height, width = values.shape
    blocks = values.reshape(outputs // LANES, LANES, inputs // lanes, lanes // WORD, WORD, height, width)
    packed = blocks.transpose(0, 5, 6, 2, 3, 1, 4)
    return _packed(packed, weight, bias, data, result)


def pack_depthwise(weight: ScaledConstant, bias: Array, data: Quantity, result: Quantity, gap: int) -> PackedProduct:
    """Pack the constants of a depthwise convolution, whose weights are (C, 1, KH, KW).

    Args:
        gap: Of the dilation to the right: the taps between are zeros.
    """
    spread = np.zeros((*weight.integers.shape[:3], (weight.integers.shape[3] - 1) * gap + 1), np.int64)
    spread[..., ::gap] = weight.integers
    values = _filled(_filled(spread, 0, LANES), 3, WORD)
    channels, _, height, width = values.shape
    blocks = values.reshape(channels // LANES, LANES, height, width // WORD, WORD)
    return _packed(blocks.transpose(0, 2, 3, 1, 4), weight, bias, data, result)


def _packed(packed: Array, weight: ScaledConstant, bias: Array, data: Quantity, result: Quantity) -> PackedProduct:
    """As ONNX Runtime computes them: scales in float32, and the zero point of the input in the bias."""
    outputs = len(weight.integers)
    scale = np.broadcast_to((data.scale * weight.scale) / result.scale, (outputs,)).astype(np.float32)
    moved = bias.astype(np.int64) - data.zero * weight.integers.reshape(outputs, -1).sum(axis=1)
    narrow = bool((packed >= -_NARROW).all() and (packed < _NARROW).all())
    return PackedProduct(
        np.ascontiguousarray(packed.astype(np.int8)),
        _filled(scale, 0, LANES).reshape(-1, LANES),
        _filled(moved, 0, LANES).astype(np.int32).reshape(-1, LANES),
        narrow,
    )


def _filled(values: Array, axis: int, multiple: int) -> Array:
    """An array with zeros at the end of an axis, so that its size is a multiple."""
    widths = [(0, 0)] * values.ndim
    widths[axis] = (0, -values.shape[axis] % multiple)
    return np.pad(values, widths)
