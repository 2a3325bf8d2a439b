"""Convolutions of small images as products over a row of pixels.

The innermost tile of a good kernel has some pixels times some output channels, and the registers must hold all of it.
MetaSchedule makes tiles whose sides divide the height and the width. An image of 7x7 or 13x13 pixels has no fitting
tile where registers are few: with AVX2, sums of 7 pixels times 16 channels need 14 of 16 registers, and the weights two
more. So the pixels are numbered row by row, and a few are added at the end until a good tile divides their number. The
added ones compute the last pixel again, and nobody reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from tvm import te, tirx

from autotune.tvm_backend.operators.convolution import Window, te_pad
from autotune.tvm_backend.types import PrimExpr, TensorExpr

# A multiply-add takes four cycles, and a core begins two in each. Fewer sums than this would wait for each other.
_MIN_SUMS = 8
_MAX_LOADS = 1.07  # vectors to load for each multiply-add: a core can load two in each cycle
_MAX_MORE = 1.1  # pixels with the added ones, relative to those without
# The sums of all pixels are written before bias and activation read them again. They should not leave the caches.
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class _Tile:
    """The innermost tile: for each pixel, a sum for each vector of output channels."""

    pixels: int
    vectors: int

    @property
    def sums(self) -> int:
        return self.pixels * self.vectors

    @property
    def loads(self) -> float:
        """How many vectors are loaded for each multiply-add: weights for all pixels, and pixels for all weights."""
        return (self.pixels + self.vectors) / self.sums

    def is_good(self, registers: int) -> bool:
        """Return whether it keeps a core busy from its registers.

        They hold the sums, all of the vectors or all of the pixels, whichever are fewer, and one of the others.
        """
        held = self.sums + min(self.pixels, self.vectors) + 1
        return self.sums >= _MIN_SUMS and held <= registers and self.loads <= _MAX_LOADS

    def divides(self, height: int, width: int) -> bool:
        """Return whether rectangles with so many pixels, whose sides divide those of an image, exist."""
        sides = ((rows, self.pixels // rows) for rows in range(1, self.pixels + 1) if self.pixels % rows == 0)
        return any(height % rows == 0 and width % columns == 0 for rows, columns in sides)


def padded_pixels(size: tuple[int, ...], channels: int, block: int, registers: tuple[int, int]) -> int:
    """Return how many pixels to compute in one row, with the added ones.

    Args:
        size: The height and the width of the output.
        channels: How many channels the output has.
        block: How many of them are in a chunk.
        registers: How many 32-bit elements a vector register has, and how many such registers there are.

    Returns:
        The number of pixels; 0 if the image has a good tile as it is, or adding pixels costs more than it gains.
    """
    pixels = prod(size)
    vectors = -(-block // registers[0])
    chunks = -(-channels // block)
    wide = [vectors * count for count in range(1, chunks + 1) if chunks % count == 0]
    tiles = [_Tile(*sides) for sides in product(range(1, registers[1]), wide)]
    good = [tile for tile in tiles if tile.is_good(registers[1])]
    if channels * pixels * 4 > _MAX_BYTES or any(tile.divides(*size) for tile in good):
        return 0
    # A tile that holds its weights in registers is the fastest one, as measured.
    holding = [tile for tile in good if tile.sums + tile.vectors + 1 <= registers[1]]
    padded = {tile: -(-pixels // tile.pixels) * tile.pixels for tile in holding}
    fitting = [tile for tile, count in padded.items() if count <= _MAX_MORE * pixels]
    return padded[min(fitting, key=lambda tile: padded[tile] * tile.loads)] if fitting else 0


def te_conv_pixels(data: TensorExpr, kernel: TensorExpr, geometry: Window, pixels: int) -> TensorExpr:
    """Express a convolution of packed tensors over pixels in a row.

    Args:
        data: The input of shape (N, IC, H, W, bi).
        kernel: The weights of shape (OC, IC, KH, KW, bi, bo).
        pixels: How many pixels to compute: at least OH * OW.

    Returns:
        The output of shape (N, OC, OH, OW, bo).
    """
    padded = _padded(data, geometry)
    (height, width) = geometry.size
    axes = [te.reduce_axis((0, size)) for size in kernel.shape[1:-1]]
    chunk, down, right, lane = axes

    def element(n: PrimExpr, oc: PrimExpr, pixel: PrimExpr, o: PrimExpr) -> PrimExpr:
        inside = tirx.min(pixel, height * width - 1)
        place = geometry.at(inside // width, inside % width, down, right)
        return te.sum(padded[(n, chunk, *place, lane)] * kernel[(oc, *axes, o)], axis=axes)

    batch = data.shape[0]
    outputs = kernel.shape[0]
    block = kernel.shape[-1]
    sums = te.compute((batch, outputs, pixels, block), element, name="conv2d_NCHWc", tag="conv2d_NCHWc")
    return te.compute(
        (batch, outputs, height, width, block),
        lambda n, oc, h, w, o: sums[n, oc, h * width + w, o],
        name="image_of_pixels",
        attrs={"schedule_rule": "image_of_pixels"},
    )


def _padded(data: TensorExpr, geometry: Window) -> TensorExpr:
    """Return the input with zeros around it, computed as a whole.

    Rows and columns of a tile of pixels are not known. Computed for each tile, as MetaSchedule would try, the padding
    would be that of the whole image each time.
    """
    if not any(geometry.padding):
        return data
    top, left, bottom, right = geometry.padding
    size = int(data.shape[2]) + top + bottom, int(data.shape[3]) + left + right
    return te_pad(data, (top, left), size, name="data_pad")
