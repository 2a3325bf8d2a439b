"""Tiles of products with a packed matrix that are good at any size: the first candidates of such a task.

They are the blocks of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008). A few rows by
a few chunks of columns stay in registers. All rows of a thread multiply a part of the matrix before the next part is
read, so that a matrix that no cache holds is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from autotune.strategies.space import Configuration
from autotune.tvm_backend.isa.choice import vector_registers
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
    for chunks in _CHUNKS:
        for index, (instructions, places) in enumerate(knobs.sketches()):
            sketch = TiledSketch.read(instructions)
            configuration = None if sketch is None else _configuration(knobs, index, sketch, places, chunks)
            if configuration is not None:
                yield configuration


def _configuration(
    knobs: Knobs, index: int, sketch: TiledSketch, places: tuple[int, ...], chunks: int
) -> Configuration | None:
    einsum = sketch.einsum(knobs.program) if sketch.block == PACKED_PRODUCT else None
    if einsum is None or sketch.unroll is None or sketch.locations or sketch.split:
        return None
    if sketch.structure != _STRUCTURE or not sketch.tiles_all(einsum):
        return None
    tiles = _tiles(einsum, chunks, *vector_registers(knobs.target))
    instruction, limits = sketch.unroll
    pieces = prod(tiles[loop][0] for loop in einsum.spatial) if tiles else 0
    if pieces < _PIECES * int(knobs.target.attrs["num-cores"]) or _UNROLLED not in limits:
        return None
    positions = {0: index, places[instruction]: limits.index(_UNROLLED)}
    for loop, tile in tiles.items():
        place = places[sketch.tiles[loop]]
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
