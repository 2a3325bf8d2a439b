"""Tiles of products with a packed matrix that are good at any size: the first candidates of such a task.

They are the blocks of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008). A few rows by
a few chunks of columns stay in registers. All rows of a thread multiply a part of the matrix before the next part is
read, so that a matrix that no cache holds is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from autotune.strategies.space import Configuration
from autotune.tvm_backend.isa.available import vector_registers
from autotune.tvm_backend.operators.packed_product import PACKED_PRODUCT
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.tiled_block import Einsum, TiledSketch

Tile = tuple[int, ...]
_STRUCTURE = "SSRSRS"
_MIN_ROWS = 8  # for fewer, the matrix is read once in any order
_MAX_ROWS = 128  # of a thread's block: with a part of the inner dimension they fit into L2
_CHUNKS = (4, 8)  # that a part of the matrix has
_MAX_CHUNKS = 2  # in registers
_MAX_INNER = 64
_UNROLLED = 64
_PIECES = 4  # for each thread, at least


def product_tiles(knobs: Knobs) -> Iterator[Configuration]:
    """Yield configurations of a product with a packed matrix, the best first; none of any other program."""
    products = list(_products(knobs))
    for chunks in _CHUNKS:
        configurations = (_configuration(knobs, product, chunks) for product in products)
        yield from (configuration for configuration in configurations if configuration is not None)


@dataclass(frozen=True)
class _Product:
    """A sketch that tiles the product."""

    index: int
    places: tuple[int, ...]  # the knobs of its sampling instructions
    sketch: TiledSketch  # what these decide
    einsum: Einsum  # the block
    unroll: tuple[int, int]  # the position of the limit of unrolling, and the knob that decides it


def _products(knobs: Knobs) -> Iterator[_Product]:
    for index, (instructions, places) in enumerate(knobs.sketches()):
        sketch = TiledSketch.read(instructions)
        if sketch is None or sketch.block != PACKED_PRODUCT or sketch.structure != _STRUCTURE:
            continue
        einsum = sketch.einsum(knobs.program)
        if einsum is None or not sketch.tiles_all(einsum) or sketch.locations or sketch.split:
            continue
        if sketch.unroll is not None and _UNROLLED in sketch.unroll[1]:
            instruction, limits = sketch.unroll
            yield _Product(index, places, sketch, einsum, (limits.index(_UNROLLED), places[instruction]))


def _configuration(knobs: Knobs, product: _Product, chunks: int) -> Configuration | None:
    tiles = _tiles(product.einsum, chunks, *vector_registers(knobs.target))
    pieces = prod(tiles[loop][0] for loop in product.einsum.spatial) if tiles else 0
    if pieces < _PIECES * int(knobs.target.attrs["num-cores"]):
        return None
    limit, unrolled = product.unroll
    positions = {0: product.index, unrolled: limit}
    for loop, tile in tiles.items():
        place = product.places[product.sketch.tiles[loop]]
        values = knobs.space.knobs[place].values
        if tile not in values:
            return None
        positions[place] = values.index(tile)
    return tuple(positions.get(place, 0) for place in range(len(knobs.space.knobs)))


def _tiles(einsum: Einsum, chunks: int, lanes: int, registers: int) -> dict[int, Tile]:
    """Return the tile of each loop of the block, its levels from outside in; none for a product of few rows."""
    *outer, row, chunk, lane = einsum.spatial
    rows, columns, block = (int(einsum.extents[loop]) for loop in (row, chunk, lane))
    if rows < _MIN_ROWS or len(einsum.reduction) != 1:
        return {}
    inner = _divisor(columns, _MAX_CHUNKS)
    vectors = inner * max(1, block // lanes)
    height = _divisor(rows, max(1, registers // 2 // vectors))
    (depth,) = einsum.reduction
    steps = _divisor(int(einsum.extents[depth]), _MAX_INNER)
    return {
        **{loop: (int(einsum.extents[loop]), 1, 1, 1) for loop in outer},
        row: _levels(rows, _divisor(rows // height, _MAX_ROWS // height), height),
        chunk: _levels(columns, _divisor(columns // inner, chunks // inner or 1), inner),
        lane: _levels(block, 1, block),
        depth: (int(einsum.extents[depth]) // steps, steps),
    }


def _levels(extent: int, middle: int, inner: int) -> Tile:
    return extent // prod((middle, inner)), 1, middle, inner


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is not above a limit."""
    return next(item for item in range(min(number, most), 0, -1) if number % item == 0)
