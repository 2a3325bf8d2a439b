"""Constant weights of int8 and bfloat16, in the order in which products of chunks (VNNI, AMX and the like) read them.

Those of float32 are packed in `operators/convolution.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.intrinsics.dots import channel_at
from autotune.tvm_backend.isa.available import Instructions
from autotune.tvm_backend.isa.values import LANES, WORD
from autotune.tvm_backend.operators.chunked_product import Grouping

Array = npt.NDArray[Any]
_NARROW = 64
_MIN_INT8 = -128
_MAX_INT8 = 127


@dataclass(frozen=True)
class PackedWeights:
    """Weights as a kernel reads them.

    Attributes:
        weight: Signed bytes.
        totals: Integers (OC, 16): the sum of the weights of each output.
        narrow: Whether all weights lie in -64..63.
        grouping: Which channels they multiply; None for a depthwise convolution.
    """

    weight: Array
    totals: Array
    narrow: bool
    grouping: Grouping | None

    def for_instructions(self, instructions: Instructions) -> PackedWeights:
        """Return the same weights in the order that instructions want, where it is not that of the channels."""
        if not instructions.words:
            return self
        order = [channel_at(position) for position in range(WORD)]
        return replace(self, weight=np.ascontiguousarray(self.weight[..., order]))


def pack_convolution(weight: Array, lanes: int, chunks: int, groups: int = 1) -> PackedWeights:
    """Pack the weights of a convolution.

    Args:
        weight: Integers (O, I, KH, KW), with I the channels of a group.
        lanes: Channels in a chunk of the input.
        chunks: Chunks of the input.
        groups: How many groups of channels there are.
    """
    values = filled(weight, 1, lanes)
    grouping = Grouping(0, 0, chunks)
    if groups > 1:
        values, grouping = by_group(weight, len(weight) // groups, lanes, chunks)
    summands = _signed_bytes(values)
    values = np.concatenate(summands, axis=1)
    grouping = Grouping(grouping.outer, grouping.inner, grouping.chunks, len(summands))
    return _packed(in_words(values, lanes, WORD), weight, grouping)


def pack_depthwise(weight: Array, gap: int) -> PackedWeights:
    """Pack the weights of a depthwise convolution: signed bytes (C, 1, KH, KW).

    Args:
        gap: Of the dilation to the right: the taps between are zeros.
    """
    spread = np.zeros((*weight.shape[:3], (weight.shape[3] - 1) * gap + 1), np.int64)
    spread[..., ::gap] = weight
    return _packed(taps_in_words(spread, WORD), weight, None)


def taps_in_words(weight: Array, word: int) -> Array:
    """Return weights of a depthwise convolution, (C, 1, KH, KW), as (C / 16, KH, KW / w, 16, w): words of taps."""
    values = filled(filled(weight, 0, LANES), 3, word)
    channels, _, height, width = values.shape
    return values.reshape(channels // LANES, LANES, height, width // word, word).transpose(0, 2, 3, 1, 4)


def in_words(weight: Array, lanes: int, word: int) -> Array:
    """Return weights in the order in which products of words read them: (O / 16, KH, KW, I / b, b / w, 16, w).

    Args:
        weight: (O, I, KH, KW), with I the channels that each output depends on; it is filled up to whole chunks.
        lanes: Channels in a chunk of the input, b.
        word: Elements of a word, w.
    """
    whole = filled(filled(weight, 0, LANES), 1, lanes)
    outputs, inputs, height, width = whole.shape
    blocks = whole.reshape(outputs // LANES, LANES, inputs // lanes, lanes // word, word, height, width)
    return blocks.transpose(0, 5, 6, 2, 3, 1, 4)


def by_group(weight: Array, outer: int, lanes: int, chunks: int) -> tuple[Array, Grouping]:
    """Return weights for all channels of the chunks that each chunk of the output depends on: zeros for other groups.

    Args:
        weight: (O, I, KH, KW), with I the channels of a group.
        lanes: Channels in a chunk of the input.
        chunks: Chunks of the input.
    """
    weight = filled(weight, 0, LANES)
    outputs, inner, *window = weight.shape
    starts = np.arange(outputs) // outer * inner  # the first channel that each output depends on
    firsts = starts[::LANES] // lanes
    lasts = (starts[LANES - 1 :: LANES] + inner - 1) // lanes
    count = min(int((lasts - firsts).max()) + 1, chunks)
    values = np.zeros((outputs, count * lanes, *window), weight.dtype)
    for output, start in enumerate(starts):
        place = start - min(firsts[output // LANES], chunks - count) * lanes
        kept = values[output, place : place + inner]  # an output that only fills the chunk may lie beyond the end
        kept[...] = weight[output, : len(kept)]
    return values, Grouping(outer, inner, count)


def fits(weight: Array) -> bool:
    """Return whether integers are signed bytes."""
    return bool((weight >= _MIN_INT8).all() and (weight <= _MAX_INT8).all())


def by_channel(values: Array, outputs: int, dtype: npt.DTypeLike) -> Array:
    """Return one number for all channels, or one for each, as (OC, 16)."""
    wide = np.broadcast_to(values.reshape(-1), (outputs,))
    return filled(wide, 0, LANES).astype(dtype).reshape(-1, LANES)


def _signed_bytes(values: Array) -> list[Array]:
    """Integers as sums of signed bytes."""
    summands: list[Array] = []
    left = values
    while not summands or left.any():
        summands.append(np.clip(left, _MIN_INT8, _MAX_INT8))
        left = left - summands[-1]
    return summands


def _packed(blocks: Array, weight: Array, grouping: Grouping | None) -> PackedWeights:
    outputs = len(weight)
    totals = by_channel(weight.reshape(outputs, -1).sum(axis=1), outputs, np.int32)
    narrow = bool((blocks >= -_NARROW).all() and (blocks < _NARROW).all())
    return PackedWeights(np.ascontiguousarray(blocks.astype(np.int8)), totals, narrow, grouping)


def filled(values: Array, axis: int, multiple: int) -> Array:
    """Return an array with zeros at the end of an axis, so that its size is a multiple."""
    widths = [(0, 0)] * values.ndim
    widths[axis] = (0, -values.shape[axis] % multiple)
    return np.pad(values, widths)
