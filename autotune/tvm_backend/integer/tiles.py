"""The geometry of products of tiles: which part of an image one kernel computes, and how fast."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass

_PREFIX = "autotune_amx_"
_NAME = re.compile(_PREFIX + r"(\d+(?:_\d+)*)")
_ROWS = 16  # of a tile
_BYTES = 64  # of a row
_TILES = 8
_WORD = 4  # bytes that are multiplied and summed at once
_SIZES = (1, 2)  # bytes of an element
_LANES = 16


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
        found = _NAME.fullmatch(name)
        numbers = [int(item) for item in found[1].split("_")] if found else []
        most = len(cls.__dataclass_fields__)
        whole = most - 1 <= len(numbers) <= most and min(numbers) > 0
        product = cls(*numbers) if whole else None
        return product if product and product.size in _SIZES and product.name == name else None

    @property
    def pixels(self) -> int:
        """Pixels of a tile: the most that divide the columns."""
        return max(size for size in range(1, _ROWS + 1) if self.columns % size == 0)

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
        return self.rows * self.columns // self.pixels

    def fits(self) -> bool:
        """Return whether sums and operands have room in the registers."""
        return self.images * self.chunks + self.chunks + min(self.images, 2) <= _TILES

    def rate(self) -> float:
        """Estimate the products per cycle: of the multiplication, or of the loads where they take longer."""
        loads = (self.images * self.pixels + self.chunks * self.depth / _WORD) / 2
        cycles = max(self.images * self.chunks * self.pixels, loads)
        return self.images * self.pixels * self.chunks * _LANES * self.depth / cycles
