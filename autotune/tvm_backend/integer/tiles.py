"""The geometry of products of tiles: which part of an image one kernel computes, and how fast."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass

_PREFIX = "autotune_amx_"
_NAME = re.compile(_PREFIX + r"([0-9]{1,9}(?:_[0-9]{1,9})*)")
_ROWS = 16  # of a tile
_BYTES = 64  # of a row
_TILES = 8
_WORD = 4  # bytes that are multiplied and summed at once
_SIZES = (1, 2)  # bytes of an element
_LANES = 16
_FEW_ROWS = 8  # of a tile, for which a load of weights takes longer than the products with them
_WEIGHT_COST = 2  # of loading a row of weights, in rows of pixels


@dataclass(frozen=True)
class TileProduct:
    """The geometry of a kernel.

    Attributes:
        rows, columns: Pixels of the output that it computes.
        chunks: Vectors of sixteen channels that it computes.
        high, wide: Size of the window.
        inner, lanes: Chunks of the input, and their channels.
        step_y, step_x: Strides.
        gap: Dilation downwards.
        size: Bytes of an element: 1 for integers, 2 for bfloat16.
    """

    rows: int
    columns: int
    chunks: int
    high: int
    wide: int
    inner: int
    lanes: int
    step_y: int
    step_x: int
    gap: int
    size: int = 1

    @property
    def name(self) -> str:
        numbers = astuple(self) if self.size > 1 else astuple(self)[:-1]
        return _PREFIX + "_".join(map(str, numbers))

    @classmethod
    def of(cls, name: str) -> TileProduct | None:
        """Return the geometry that a name says; None if it is no such name."""
        match = _NAME.fullmatch(name)
        numbers = [int(item) for item in match[1].split("_")] if match else []
        most = len(cls.__dataclass_fields__)
        whole = most - 1 <= len(numbers) <= most and min(numbers) > 0
        product = cls(*numbers) if whole else None
        return product if product and product.size in _SIZES and product.name == name else None

    @property
    def pixels(self) -> int:
        """Pixels of a tile: the most that divide the columns, or of one row as many as there can be."""
        dividing = max(size for size in range(1, _ROWS + 1) if self.columns % size == 0)
        return dividing if self.rows > 1 or dividing >= _FEW_ROWS else min(_ROWS, self.columns)

    @property
    def rest(self) -> int:
        """Pixels of the last tile, where it has fewer; otherwise 0."""
        return self.columns % self.pixels

    @property
    def run(self) -> int:
        """Bytes of a row of the window, which lie one after the other."""
        return self.wide * self.inner * self.lanes * self.size

    @property
    def word(self) -> int:
        """Elements that are multiplied and summed at once."""
        return _WORD // self.size

    @property
    def depth(self) -> int:
        """Bytes of a row of a tile: the most that divide a row of the window."""
        return max(size for size in range(_WORD, _BYTES + 1, _WORD) if self.run % size == 0)

    @property
    def images(self) -> int:
        """Tiles of pixels."""
        return self.rows * -(-self.columns // self.pixels)

    @property
    def operands(self) -> int:
        """Registers for tiles of pixels: two, so that one is loaded while the other is used, and one for the rest."""
        return min(self.images - bool(self.rest), 2) + bool(self.rest)

    def fits(self) -> bool:
        """Return whether sums and operands have room in the registers."""
        return self.images * self.chunks + self.chunks + self.operands <= _TILES

    def rate(self) -> float:
        """Estimate the products per cycle: of the multiplication, or of the loads where they take longer."""
        return self.work * _LANES * self.depth / max(self.work, self.loads())

    def loads(self) -> float:
        """Estimate the cycles of the loads. Weights come from farther away than pixels, which are read again."""
        return (self.rows * self.columns + _WEIGHT_COST * self.chunks * self.depth / _WORD) / 2

    @property
    def work(self) -> int:
        """The cycles of the multiplications: one for each pixel and vector of channels."""
        return self.rows * self.columns * self.chunks
