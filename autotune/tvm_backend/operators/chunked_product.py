"""Convolutions and products of rows over images in chunks of channels, whatever the type of their elements.

Rows (R, C) of a product are the image (1, 1, R, C / 16, 16).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from autotune.tvm_backend.intrinsics.amx_and_vector_tiles import INTRINSIC, LEFT_ALONE, PAD, tile_annotations
from autotune.tvm_backend.intrinsics.dots import channel_at
from autotune.tvm_backend.isa.available import Instructions
from autotune.tvm_backend.isa.values import LANES, WORD
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.operators.element_types import PackedElement
from autotune.tvm_backend.types import PrimExpr, TensorExpr


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
class ChunkedProduct:
    """What a kernel multiplies and how.

    Attributes:
        element: The type of the elements of images and weights.
        window: The geometry.
        instructions: Those that may compute it.
        grouping: Which channels are multiplied; None for all.
    """

    element: PackedElement
    window: Window
    instructions: Instructions
    grouping: Grouping | None = None

    @property
    def offset(self) -> int:
        """What is taken from each element of the data before it is multiplied."""
        return self.instructions.offset

    def sums(self, data: TensorExpr, weight: TensorExpr, zero: PrimExpr) -> TensorExpr:
        """Return the sums of products (N, OH, OW, OC, 16) as a tensor expression.

        Args:
            data: The image (N, H, W, IC, b).
            weight: (OC, KH, KW, IC, b / w, 16, w) for words of w elements, as `in_words` packs them; with N before OC
                where each image has weights of its own.
            zero: The element of the data that stands for zero, which is the padding.
        """
        words = self.instructions.words
        source = padded(data, self.window, zero, words=words)
        extents = weight.shape[-7:]
        own = len(weight.shape) > len(extents)
        axes = [te.reduce_axis((0, extents[axis])) for axis in (1, 2, 3, 4, 6)]
        down, right, chunk, word, place = axes
        all_chunks, lanes = (int(extent) for extent in data.shape[3:])

        def product(n: PrimExpr, y: PrimExpr, x: PrimExpr, c: PrimExpr, lane: PrimExpr) -> PrimExpr:
            inner = self.grouping.chunk(c, chunk, all_chunks, lanes) if self.grouping else chunk
            channel = word * self.element.word + (channel_at(place) if words else place)
            one = self.element.factor(source[(n, *self.window.at(y, x, down, right), inner, channel)])
            one = one - self.offset if self.offset else one
            tap = (*([n] if own else []), c, down, right, chunk, word, lane, place)
            return te.sum(one * self.element.factor(weight[tap]), axis=axes)

        shape = (data.shape[0], *self.window.size, extents[0], extents[5])
        attributes = self._attributes([int(extent) for extent in extents[1:4]], all_chunks, lanes)
        return te.compute(shape, product, name=self.element.block, attrs=attributes)

    def _attributes(self, weight: list[int], all_chunks: int, lanes: int) -> dict[str, Any]:
        attributes: dict[str, Any] = {"schedule_rule": self.element.block, INTRINSIC: self.instructions.vector}
        if self.instructions.tiles and self.window.dilation[1] == 1 and weight[-1] == all_chunks:
            size = [] if self.element.word == WORD else [self.element.word]  # a tile of bytes is named without it
            geometry = [*weight, lanes, *self.window.strides, self.window.dilation[0], *size]
            attributes |= tile_annotations(self.instructions.tiles, geometry)
        return attributes
