"""Choose the block of packed channels, and pack constants."""

from __future__ import annotations

import numpy as np
from tvm import relax

from autotune.tvm_backend.graph.convolution import PLAIN, Array, pack_channels
from autotune.tvm_backend.graph.rewrite import Expr, is_tensor_constant, static_shape

_MAX_PADDING = 1.25  # channels with padding, relative to channels without


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
    """Return an array as a Relax constant with the element type of another expression."""
    return relax.const(np.ascontiguousarray(value), str(like.ty.dtype))
