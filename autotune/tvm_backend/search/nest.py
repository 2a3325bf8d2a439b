"""Features of a candidate's loop nest, read off its trace without lowering the program.

A block that MetaSchedule tiles on many levels is an einsum: sums of its loops index each buffer. Every level of its
nest touches an amount of data and uses each element a number of times, both of which follow from the tile sizes, and
caches and registers reward reuse. The computation takes microseconds, where a replay takes milliseconds. On tasks
that were never measured it ranks candidates better than features of the lowered program (`models/train_prior.py`).
The idea is that of Pruner's draft model (Qiao et al., ASPLOS 2025, section 4) and of TLP (Zhai et al., ASPLOS 2023):
both judge schedules before they are lowered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.isa.available import vector_registers
from autotune.tvm_backend.search.design_space import before_postprocessing, sampled
from autotune.tvm_backend.search.split_reduction import extents_of_product
from autotune.tvm_backend.search.tiled_block import Einsum, Numbers, TiledSketch
from autotune.tvm_backend.types import IRModule, PlainInstruction, PlainTrace, Target

Rows = npt.NDArray[np.float32]
# Features by name, each [candidates].
Columns = dict[str, Numbers]

LEVELS = 8  # of a tiling structure at most: GPUs have SSSRRSRS
PARTS = 5  # of a tile at most
LOOPS = 4  # the tiles of this many spatial loops are features, from the innermost one outwards
LOCATIONS = 2  # the compute locations of this many producers are features
BODIES = 4  # statements that may be unrolled are counted for this many levels, from inside out
BUFFERS = ("largest_input", "second_input", "output")

_LEVEL_COLUMNS = (
    *("extent", "iterations"),
    *(f"{buffer}_{fact}" for buffer in BUFFERS for fact in ("elements", "reuse", "run")),
    "elements",
)
_SCHEDULE_COLUMNS = (
    "unroll_limit",
    *(f"unroll_limit_over_body{level}" for level in range(BODIES)),
    *("inner_tile", "inner_rows", "first_inner_reduction", "last_inner_reduction"),
    *("parallel_pieces", "parallel_balance", "outer_tile"),
    *("spatial_iterations", "reduction_iterations", "fused_level", "producers", "loops"),
    *(f"producer{index}_{fact}" for index in range(LOCATIONS) for fact in ("loop", "level")),
    *("result_registers", "register_pressure"),
    *(f"producer{index}_{fact}" for index in range(LOCATIONS) for fact in ("work", "elements", "run")),
)
# The features in their order. Levels, loops and parts of tiles count from inside out. All are logarithms to base 2,
# except balance (a share from 0 to 1), levels, loops and producers (numbers). What a candidate does not have is NaN.
COLUMNS = (
    *(f"level{level}_{name}" for level in range(LEVELS) for name in _LEVEL_COLUMNS),
    *(f"loop{loop}_part{part}" for loop in range(LOOPS) for part in range(PARTS)),
    *_SCHEDULE_COLUMNS,
)
WIDTH = len(COLUMNS)

# Outer loops are fused and run in parallel until they make more than this many pieces for each core.
_PIECES_PER_CORE = 16
# log2(unroll limit / statements) where nothing is unrolled.
_NOT_UNROLLED = -12.0
_INLINED = -2  # the location of a producer that has no loops of its own


@dataclass(frozen=True)
class TiledNests:
    """The loop nests of n candidates of one sketch.

    Attributes:
        spatial, reduction: Tiles of the loops of each kind, parts from outside in, [n, loops, parts].
    """

    einsum: Einsum
    structure: str
    spatial: Numbers
    reduction: Numbers
    copies: int = 1

    @cached_property
    def sizes(self) -> list[Numbers]:
        """Extents of each level, from outside in: [n, loops of its kind]."""
        tiles = {"S": iter(np.moveaxis(self.spatial, 2, 0)), "R": iter(np.moveaxis(self.reduction, 2, 0))}
        return [next(tiles[kind]) for kind in self.structure]

    def inside(self, locations: Numbers) -> Numbers:
        """Return the extent of each of the block's loops inside one loop of each nest: [n, loops of the block].

        Args:
            locations: Number of the loop, from outside in; -1 for outside of all, -2 for inside of all: [n].
        """
        loops = [
            (loop, sizes[:, index])
            for kind, sizes in zip(self.structure, self.sizes, strict=True)
            for index, loop in enumerate(self.einsum.spatial if kind == "S" else self.einsum.reduction)
        ]
        last = np.where(locations == _INLINED, len(loops), locations)
        tile = np.ones((len(self.spatial), len(self.einsum.extents)))
        for number, (loop, extents) in enumerate(loops):
            tile[:, loop] *= np.where(number > last, extents, 1)
        return tile

    @cached_property
    def inner_rows(self) -> Numbers:
        """How often the innermost spatial tile runs its last loop, the vectorised one: [n]."""
        return np.asarray(self.spatial[:, :-1, -1].prod(axis=1))


class NestFeatures:
    """Extracts features of the loop nests of a program's candidates on a target.

    Args:
        program: The module of the task, not scheduled yet.
        target: A TVM target; its cores and vector registers count.
    """

    def __init__(self, program: IRModule, target: Target) -> None:
        self.program = program
        self.target = target
        self._cores = max(int(target.attrs.get("num-cores", 1) or 1), 1)
        self._vectors = vector_registers(target)
        self._sketches: dict[str, TiledSketch | None] = {}
        self._einsums: dict[tuple[str, tuple[int, int] | None], Einsum] = {}

    @cached_property
    def product(self) -> tuple[int, int] | None:
        """What `extents_of_product` returns of the program, which is read once."""
        return extents_of_product(self.program)

    def sketch(self, instructions: Sequence[PlainInstruction]) -> TiledSketch | None:
        """Return what `rows` needs of a sketch; None for a sketch that has no such features."""
        key = json.dumps(instructions)
        if key not in self._sketches:
            sketch = TiledSketch.read(instructions)
            self._sketches[key] = sketch if sketch and self._is_complete(sketch) else None
        return self._sketches[key]

    def _is_complete(self, sketch: TiledSketch) -> bool:
        """Whether every loop of a block of the program is tiled, on no more levels than there are columns for."""
        key = (sketch.block, sketch.split)
        if key not in self._einsums and (einsum := sketch.einsum(self.program)) is not None:
            self._einsums[key] = einsum
        return key in self._einsums and sketch.tiles_all(self._einsums[key]) and len(sketch.structure) <= LEVELS

    def of_traces(self, traces: Sequence[PlainTrace]) -> list[Rows | None]:
        """Return the features of traces in JSON form, each [1, WIDTH], in order.

        One without a tiled block has None, and one with tiles whose sizes are no numbers of a program.
        """
        rows_of_traces: list[Rows | None] = [None] * len(traces)
        groups: dict[int, tuple[TiledSketch, list[int]]] = {}
        for index, trace in enumerate(traces):
            sketch = self.sketch(before_postprocessing(trace))
            if sketch is not None:
                groups.setdefault(id(sketch), (sketch, []))[1].append(index)
        for sketch, members in groups.values():
            searched = ([before_postprocessing(traces[index]), traces[index][1]] for index in members)
            decided = zip(*map(sampled, searched), strict=True)
            with np.errstate(over="ignore", invalid="ignore"):
                rows = self.rows(sketch, [np.array(column, dtype=np.float64) for column in decided])
            for index, row in zip(members, rows, strict=True):
                rows_of_traces[index] = None if np.isinf(row).any() else row[None]
        return rows_of_traces

    def rows(self, sketch: TiledSketch, decisions: Sequence[Numbers]) -> Rows:
        """Return the features of n candidates of a sketch, [n, WIDTH].

        Args:
            sketch: What all of the candidates have in common.
            decisions: What each sampling instruction decided: [n, parts] for tiles, otherwise [n].
        """
        nests = self.nests(sketch, decisions)
        columns = {
            **_levels(nests),
            **_tiles(nests),
            **_unrolling(nests, sketch, decisions),
            **_parallelism(nests, sketch, decisions, self._cores),
            **_constants(nests, sketch),
            **_locations(nests, sketch, decisions),
            **_registers(nests, *self._vectors),
        }
        missing = np.full(len(nests.spatial), np.nan)
        return np.stack([columns.get(name, missing) for name in COLUMNS], axis=1).astype(np.float32)

    def nests(self, sketch: TiledSketch, decisions: Sequence[Numbers]) -> TiledNests:
        """Return the loop nests of n candidates of a sketch, from decisions as in `rows`."""
        einsum = self._einsums[sketch.block, sketch.split]
        spatial = np.stack([decisions[sketch.tiles[loop]] for loop in einsum.spatial], axis=1)
        if einsum.reduction:
            reduction = np.stack([decisions[sketch.tiles[loop]] for loop in einsum.reduction], axis=1)
        else:
            reduction = np.ones((len(spatial), 0, sketch.structure.count("R")))
        return TiledNests(einsum, sketch.structure, spatial, reduction, sketch.copies)


def _log(values: Any) -> Numbers:
    return np.asarray(np.log2(np.maximum(values, 1e-3)), dtype=np.float64)


def _levels(nests: TiledNests) -> Columns:
    """Describe each level: its extent, the iterations of it and all levels inside, and the data that these touch."""
    einsum = nests.einsum
    tile = np.ones((len(nests.spatial), len(einsum.extents)))
    columns: Columns = {}
    for level, (kind, sizes) in enumerate(zip(reversed(nests.structure), reversed(nests.sizes), strict=True)):
        loops = list(einsum.spatial if kind == "S" else einsum.reduction)
        tile[:, loops] *= sizes
        facts = {"extent": _log(sizes.prod(axis=1)), **_touched(einsum, tile)}
        columns |= {f"level{level}_{name}": values for name, values in facts.items()}
    return columns


def _touched(einsum: Einsum, tile: Numbers) -> Columns:
    """Describe what a tile touches: elements, reuse and contiguous run of its two largest inputs and of its output.

    Args:
        einsum: The block.
        tile: The extent of each loop inside the tile, [n, loops].
    """
    iterations = tile.prod(axis=1)
    regions = [1 + (tile - 1) @ access.T for access in einsum.accesses]
    elements = np.stack([region.prod(axis=1) for region in regions], axis=1)
    runs = np.stack([region[:, -1] for region in regions], axis=1)
    largest = np.argsort(-elements[:, :-1], axis=1, kind="stable")[:, :2]
    output = np.full((len(tile), 1), len(regions) - 1)
    columns = {"iterations": _log(iterations), "elements": _log(elements.sum(axis=1))}
    for buffer, index in zip(BUFFERS, (largest[:, :1], largest[:, 1:2], output), strict=True):
        if index.size:
            some = np.take_along_axis(elements, index, 1)[:, 0]
            run = np.take_along_axis(runs, index, 1)[:, 0]
            facts = {"elements": _log(some), "reuse": _log(iterations / some), "run": _log(run)}
            columns |= {f"{buffer}_{fact}": values for fact, values in facts.items()}
    return columns


def _tiles(nests: TiledNests) -> Columns:
    """Return the tiles of the innermost spatial loops, loops and parts from inside out."""
    tiles = _log(nests.spatial[:, ::-1, ::-1][:, :LOOPS, :PARTS])
    _, loops, factors = tiles.shape
    return {f"loop{loop}_part{part}": tiles[:, loop, part] for loop in range(loops) for part in range(factors)}


def _unrolling(nests: TiledNests, sketch: TiledSketch, decisions: Sequence[Numbers]) -> Columns:
    """Compare the limit of unrolling with the statements that the innermost levels would make."""
    limit = np.zeros(len(nests.spatial))
    if sketch.unroll is not None:
        limit = np.array(sketch.unroll[1], dtype=np.float64)[decisions[sketch.unroll[0]].astype(int)]
    levels = (size.prod(axis=1) for size in nests.sizes[-2 : -1 - BODIES : -1])
    bodies = np.cumprod([nests.inner_rows, *levels], axis=0)
    over = (np.where(limit > 0, _log(limit / body), _NOT_UNROLLED) for body in bodies)
    return {
        "unroll_limit": _log(limit),
        **{f"unroll_limit_over_body{level}": values for level, values in enumerate(over)},
    }


def _parallelism(nests: TiledNests, sketch: TiledSketch, decisions: Sequence[Numbers], cores: int) -> Columns:
    """Describe the innermost tile, the pieces that run in parallel and how evenly they fill the cores."""
    pieces = _pieces(nests, sketch, decisions, cores)
    reduced = nests.reduction[:, :, -1] if nests.einsum.reduction else np.ones((len(pieces), 1))
    return {
        "inner_tile": _log(nests.spatial[:, :, -1].prod(axis=1)),
        "inner_rows": _log(nests.inner_rows),
        "first_inner_reduction": _log(reduced[:, 0]),
        "last_inner_reduction": _log(reduced[:, -1]),
        "parallel_pieces": _log(pieces),
        "parallel_balance": pieces / (np.ceil(pieces / cores) * cores),
        "outer_tile": _log(nests.sizes[0].prod(axis=1)),
    }


def _constants(nests: TiledNests, sketch: TiledSketch) -> Columns:
    """Return what all candidates of a sketch have in common."""
    einsum = nests.einsum
    facts: dict[str, Any] = {
        "spatial_iterations": _log(einsum.extents[list(einsum.spatial)].prod()),
        "reduction_iterations": _log(einsum.extents[list(einsum.reduction)].prod()),
        "fused_level": _level_of(sketch.fused, nests),
        "producers": len(sketch.locations),
        "loops": len(einsum.extents),
    }
    return {name: np.full(len(nests.spatial), float(fact)) for name, fact in facts.items()}


def _registers(nests: TiledNests, lanes: int, registers: int) -> Columns:
    """Count the vector registers that the innermost tile needs.

    The sums in its results are independent of each other. A core stalls where there are fewer of them than it has
    multiply-adds in flight, which is 8 to 10 today. Beside the results, the tile needs registers for a row of the
    operand that is loaded as vectors and for a broadcast. Where it needs more than there are, some are spilled.

    Args:
        lanes: 32-bit elements of a vector register.
        registers: Vector registers of a core.
    """
    row = np.ceil(nests.spatial[:, -1, -1] / lanes)
    results = nests.inner_rows * row
    return {"result_registers": _log(results), "register_pressure": _log((results + row + 1) / registers)}


def _pieces(nests: TiledNests, sketch: TiledSketch, decisions: Sequence[Numbers], cores: int) -> Numbers:
    """Count the pieces that run in parallel, [n].

    TVM fuses outer loops until there are enough pieces, or up to the first loop whose body has several parts.
    """
    outer = nests.structure.split("R", 1)[0]
    loops = np.concatenate(nests.sizes[: len(outer)], axis=1)
    running = np.cumprod(loops, axis=1)
    enough = running > cores * _PIECES_PER_CORE
    last = np.where(enough.any(axis=1), enough.argmax(axis=1), loops.shape[1] - 1)
    for loop in (np.full(len(last), sketch.fused), *(decisions[location].astype(int) for location in sketch.locations)):
        last = np.where(loop >= 0, np.minimum(last, loop), last)
    return np.asarray(np.take_along_axis(running, last[:, None], 1)[:, 0], dtype=np.float64)


def _level_of(loop: Any, nests: TiledNests) -> Any:
    """Return the level of a loop that is counted from outside. Negative values, for no loop, stay as they are."""
    ends = np.cumsum([size.shape[1] for size in nests.sizes])
    return np.where(np.asarray(loop) < 0, loop, np.searchsorted(ends, loop, side="right"))


def _locations(nests: TiledNests, sketch: TiledSketch, decisions: Sequence[Numbers]) -> Columns:
    """Return where the first producers are computed, as loop and level counted from outside, and what that takes."""
    columns: Columns = {}
    for index, (location, producer) in enumerate(list(sketch.locations.items())[:LOCATIONS]):
        level = np.asarray(_level_of(decisions[location], nests), dtype=np.float64)
        facts = {"loop": decisions[location], "level": level}
        if producer in nests.einsum.sources:
            access = nests.einsum.accesses[nests.einsum.sources.index(producer)]
            facts |= _production(nests, access, decisions[location])
        columns |= {f"producer{index}_{fact}": values for fact, values in facts.items()}
    return columns


def _production(nests: TiledNests, access: Numbers, locations: Numbers) -> Columns:
    """Describe what a producer computes each time: its elements, and their contiguous run.

    `work` is how many elements it computes for each step of the block. That is what a padding inside the loops of a
    sum costs: of an image of three channels, more than the sum itself.

    Args:
        access: How the block reads what the producer computes, [dimensions, loops of the block].
        locations: Of the producer, [n].
    """
    tile = nests.inside(locations)
    region = 1 + (tile - 1) @ access.T
    elements = region.prod(axis=1)
    work = elements / tile.prod(axis=1)
    return {"work": _log(work), "elements": _log(elements), "run": _log(region[:, -1])}
