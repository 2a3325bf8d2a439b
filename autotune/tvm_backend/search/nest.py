"""The loop nest of a candidate, read off its trace: features of a tiled block without lowering the program.

A block that MetaSchedule tiles on many levels is an einsum: each buffer is indexed by sums of its loops. From tile
sizes follows, for every level of the nest, how much data it touches and how often each element is used again, which
is what caches and registers reward. That takes microseconds, where a replay takes milliseconds, and ranks candidates
of tasks that were never measured better than features of the lowered program do (`scripts/train_prior.py`). The idea
is that of Pruner's draft model (Qiao et al., ASPLOS 2025, section 4) and of TLP (Zhai et al., ASPLOS 2023): both
judge schedules before they are lowered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.search.space import before_postprocessing, sampled
from autotune.tvm_backend.target import vector_registers

Rows = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]

_LEVELS = 8  # of a tiling structure at most: GPUs have SSSRRSRS
_PARTS = 5
_LOOPS = 4  # innermost spatial loops whose tiles are features of their own
_LOCATIONS = 2
_PER_LEVEL = 12
# A loop nest is run in parallel by its outermost loops, until these make more than so many pieces for each core.
_PIECES_PER_CORE = 16
WIDTH = _LEVELS * _PER_LEVEL + _LOOPS * _PARTS + 19 + _LOCATIONS * 2


@dataclass(frozen=True)
class Einsum:
    """A block: its loops, and for each buffer, the written one last, how its indices depend on them.

    Attributes:
        spatial, reduction: positions of the loops of each kind.
        extents: of the loops, [loops].
        accesses: coefficients, each [dimensions of the buffer, loops].
    """

    spatial: tuple[int, ...]
    reduction: tuple[int, ...]
    extents: Numbers
    accesses: tuple[Numbers, ...]

    @classmethod
    def of(cls, program: Any, block: str) -> Einsum:
        """The block of this name in a program that is not scheduled yet."""
        from tvm.s_tir import Schedule

        schedule = Schedule(program)
        found = schedule.get(schedule.get_sblock(block))
        variables = [item.var for item in found.iter_vars]
        spatial = [at for at, item in enumerate(found.iter_vars) if int(item.iter_type) == 0]
        reduction = [at for at in range(len(variables)) if at not in spatial]
        extents = np.array([int(item.dom.extent) for item in found.iter_vars], dtype=np.float64)
        regions = [*found.reads, *found.writes]
        accesses = tuple(np.array([_coefficients(one.min, variables) for one in item.region]) for item in regions)
        return cls(tuple(spatial), tuple(reduction), extents, accesses)


def _coefficients(index: Any, variables: Sequence[Any]) -> list[float]:
    """How far an index moves with each loop; nowhere where it is no sum of loops."""
    from tvm import sym

    found = list(sym.detect_linear_equation(index, list(variables)))
    return [abs(float(int(item))) for item in found[:-1]] if found else [0.0] * len(variables)


@dataclass(frozen=True)
class Sketch:
    """What the sampling instructions of a sketch decide, by their position among these.

    Attributes:
        block: name of the tiled block.
        structure: its levels from outside in, such as SSRSRS.
        tiles: for each loop of the block the instruction that tiles it.
        unroll: the instruction that limits unrolling, and what it chooses from.
        locations: instructions that place the producers.
        fused: the loop at which the consumers are computed, counted from outside; -1: not in this nest.
    """

    block: str
    structure: str
    tiles: Mapping[int, int]
    unroll: tuple[int, tuple[int, ...]] | None
    locations: tuple[int, ...]
    fused: int

    @classmethod
    def read(cls, instructions: Sequence[Any]) -> Sketch | None:
        """From instructions in JSON form, without postprocessing; None where no block is tiled on many levels."""
        reader = _Reader()
        for kind, inputs, attributes, outputs in instructions:
            getattr(reader, str(kind), lambda *_: None)(inputs, attributes, outputs)
            reader.samples += str(kind).startswith("Sample")
        return reader.sketch() if reader.block and reader.tiles else None


@dataclass
class _Reader:
    """Reads instructions one after the other; its methods bear their names."""

    block: str = ""
    structure: str = ""
    samples: int = 0
    fused: int = -1
    unroll: tuple[int, tuple[int, ...]] | None = None
    tiles: dict[int, int] = field(default_factory=dict)
    locations: list[int] = field(default_factory=list)
    _order: list[str] = field(default_factory=list)
    _blocks: dict[str, str] = field(default_factory=dict)
    _loops: dict[str, tuple[str, int]] = field(default_factory=dict)
    _categories: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def sketch(self) -> Sketch:
        return Sketch(self.block, self.structure, self.tiles, self.unroll, tuple(self.locations), self.fused)

    def GetSBlock(self, _: Any, attributes: Any, outputs: Any) -> None:
        self._blocks[outputs[0]] = str(attributes[0])

    def GetLoops(self, inputs: Any, _: Any, outputs: Any) -> None:
        self._loops |= {name: (self._blocks.get(inputs[0], ""), at) for at, name in enumerate(outputs)}

    def Annotate(self, inputs: Any, attributes: Any, _: Any) -> None:
        if attributes[0] == "meta_schedule.tiling_structure":
            self.block, self.structure = self._blocks.get(inputs[0], ""), str(inputs[1]).strip('"')
        elif attributes[0] == "meta_schedule.unroll_explicit":
            self.unroll = self._categories.get(inputs[1])

    def Reorder(self, inputs: Any, *_: Any) -> None:
        self._order = list(inputs)

    def ReverseComputeAt(self, inputs: Any, *_: Any) -> None:
        if inputs[1] in self._order:
            self.fused = self._order.index(inputs[1])

    def SamplePerfectTile(self, inputs: Any, *_: Any) -> None:
        block, loop = self._loops.get(inputs[0], ("", 0))
        if block and block == self.block:
            self.tiles[loop] = self.samples

    def SampleCategorical(self, _: Any, attributes: Any, outputs: Any) -> None:
        self._categories[outputs[0]] = (self.samples, tuple(int(value) for value in attributes[0]))

    def SampleComputeLocation(self, *_: Any) -> None:
        self.locations.append(self.samples)


@dataclass(frozen=True)
class _Nest:
    """Candidates of one sketch: the tiles of spatial and of reduction loops, each [candidates, loops, parts]."""

    einsum: Einsum
    structure: str
    spatial: Numbers
    reduction: Numbers

    @cached_property
    def sizes(self) -> list[Numbers]:
        """Extents of each level, from outside in: [candidates, loops of its kind]."""
        parts = {"S": iter(np.moveaxis(self.spatial, 2, 0)), "R": iter(np.moveaxis(self.reduction, 2, 0))}
        return [next(parts[kind]) for kind in self.structure]

    @cached_property
    def rows(self) -> Numbers:
        """How often the innermost spatial tile runs its last loop, the vectorised one: [candidates]."""
        return np.asarray(self.spatial[:, :-1, -1].prod(axis=1))


class Nests:
    """The nests of a program's candidates on a target."""

    def __init__(self, program: Any, target: Any) -> None:
        self._program = program
        self._cores = max(int(target.attrs.get("num-cores", 1) or 1), 1)
        self._vectors = vector_registers(target)
        self._sketches: dict[str, Sketch | None] = {}
        self._einsums: dict[str, Einsum] = {}

    def sketch(self, instructions: Sequence[Any]) -> Sketch | None:
        """What `rows` needs to know; None where it knows nothing of such a sketch."""
        key = json.dumps(instructions)
        if key not in self._sketches:
            found = Sketch.read(instructions)
            self._sketches[key] = found if found and self._fits(found) else None
        return self._sketches[key]

    def _fits(self, sketch: Sketch) -> bool:
        einsum = self._einsum(sketch.block)
        return set(sketch.tiles) == set(range(len(einsum.extents))) and len(sketch.structure) <= _LEVELS

    def _einsum(self, block: str) -> Einsum:
        if block not in self._einsums:
            self._einsums[block] = Einsum.of(self._program, block)
        return self._einsums[block]

    def of_traces(self, traces: Sequence[Any]) -> list[Rows | None]:
        """Features of traces in JSON form, each [1, WIDTH]; None for one whose block is not tiled."""
        found: list[Rows | None] = [None] * len(traces)
        groups: dict[int, tuple[Sketch, list[int]]] = {}
        for at, trace in enumerate(traces):
            sketch = self.sketch(before_postprocessing(trace))
            if sketch is not None:
                groups.setdefault(id(sketch), (sketch, []))[1].append(at)
        for sketch, members in groups.values():
            decided = zip(*(sampled(traces[at]) for at in members), strict=True)
            rows = self.rows(sketch, [np.array(column, dtype=np.float64) for column in decided])
            for at, row in zip(members, rows, strict=True):
                found[at] = row[None]
        return found

    def rows(self, sketch: Sketch, decisions: Sequence[Numbers]) -> Rows:
        """Features of many candidates of a sketch, [n, WIDTH].

        `decisions` has for each sampling instruction what was decided: tiles [n, parts], anything else [n].
        """
        einsum = self._einsum(sketch.block)
        spatial = np.stack([decisions[sketch.tiles[at]] for at in einsum.spatial], axis=1)
        if einsum.reduction:
            reduction = np.stack([decisions[sketch.tiles[at]] for at in einsum.reduction], axis=1)
        else:
            reduction = np.ones((len(spatial), 0, sketch.structure.count("R")))
        nest = _Nest(einsum, sketch.structure, spatial, reduction)
        columns = [*_levels(nest), *_tiles(nest), *_limits(nest, sketch, decisions, self._cores)]
        columns += [_log(column) for column in _registers(nest, *self._vectors)]
        return np.stack(columns, axis=1).astype(np.float32)


def _log(values: Any) -> Numbers:
    return np.asarray(np.log2(np.maximum(values, 1e-3)), dtype=np.float64)


def _levels(nest: _Nest) -> list[Numbers]:
    """Of each level from inside out: its extent, the iterations inside, and the data that these touch."""
    einsum, count = nest.einsum, len(nest.spatial)
    tile = np.ones((count, len(einsum.extents)))
    columns: list[Numbers] = []
    for kind, sizes in zip(reversed(nest.structure), reversed(nest.sizes), strict=True):
        loops = list(einsum.spatial if kind == "S" else einsum.reduction)
        tile[:, loops] *= sizes
        columns += [_log(sizes.prod(axis=1)), *_touched(einsum, tile)]
    missing = [np.full(count, np.nan)] * _PER_LEVEL * (_LEVELS - len(nest.structure))
    return columns + missing


def _touched(einsum: Einsum, tile: Numbers) -> list[Numbers]:
    """Iterations of a tile; elements, reuse and contiguous run of its two largest inputs and of its output; all."""
    iterations = tile.prod(axis=1)
    regions = [1 + (tile - 1) @ access.T for access in einsum.accesses]
    elements = np.stack([region.prod(axis=1) for region in regions], axis=1)
    runs = np.stack([region[:, -1] for region in regions], axis=1)
    largest = np.argsort(-elements[:, :-1], axis=1, kind="stable")[:, :2]
    columns = [_log(iterations)]
    for at in (largest[:, :1], largest[:, 1:2], np.full((len(tile), 1), len(regions) - 1)):
        if not at.size:
            columns += [np.full(len(tile), np.nan)] * 3
            continue
        some, run = np.take_along_axis(elements, at, 1)[:, 0], np.take_along_axis(runs, at, 1)[:, 0]
        columns += [_log(some), _log(iterations / some), _log(run)]
    return [*columns, _log(elements.sum(axis=1))]


def _tiles(nest: _Nest) -> list[Numbers]:
    """The tiles of the innermost spatial loops from inside out, each from inside out."""
    count, loops, parts = nest.spatial.shape
    table = np.full((count, _LOOPS, _PARTS), np.nan)
    kept, deep = min(loops, _LOOPS), min(parts, _PARTS)
    table[:, :kept, :deep] = _log(nest.spatial[:, ::-1, ::-1][:, :kept, :deep])
    return list(table.reshape(count, -1).T)


def _limits(nest: _Nest, sketch: Sketch, decisions: Sequence[Numbers], cores: int) -> list[Numbers]:
    """What is unrolled, run in parallel, and computed where."""
    count, extents, inner = len(nest.spatial), nest.einsum.extents, nest.spatial[:, :, -1]
    unroll = np.zeros(count)
    if sketch.unroll is not None:
        unroll = np.array(sketch.unroll[1], dtype=np.float64)[decisions[sketch.unroll[0]].astype(int)]
    bodies = np.cumprod([nest.rows, *(size.prod(axis=1) for size in nest.sizes[-2:-5:-1])], axis=0)
    unrolled = [np.where(unroll > 0, _log(unroll / body), -12.0) for body in bodies]
    pieces = _pieces(nest, sketch, decisions, cores)
    reduced = nest.reduction[:, :, -1] if nest.einsum.reduction else np.ones((count, 1))
    work = (float(_log(extents[list(loops)].prod())) for loops in (nest.einsum.spatial, nest.einsum.reduction))
    per_level = [size.shape[1] for size in nest.sizes]
    facts = (*work, _level_of(sketch.fused, per_level), len(sketch.locations), len(extents))
    return [
        *(_log(unroll), *unrolled),
        *(_log(inner.prod(axis=1)), _log(nest.rows), _log(reduced[:, 0]), _log(reduced[:, -1])),
        *(_log(pieces), pieces / (np.ceil(pieces / cores) * cores), _log(nest.sizes[0].prod(axis=1))),
        *(np.full(count, float(fact)) for fact in facts),
        *_locations(sketch, decisions, per_level, count),
    ]


def _registers(nest: _Nest, lanes: int, registers: int) -> tuple[Numbers, Numbers]:
    """Vector registers with results of the innermost tile, and all that it asks for over those that there are.

    The sums in results are independent of each other: with fewer than a core has multiply-adds in flight, some 8 to
    10 of today's, it waits for them. Beside results are a row of the operand that is loaded as vectors, and a
    broadcast; where all ask for more than there are, some are spilled.
    """
    row = np.ceil(nest.spatial[:, -1, -1] / lanes)
    results = nest.rows * row
    return results, (results + row + 1) / registers


def _pieces(nest: _Nest, sketch: Sketch, decisions: Sequence[Numbers], cores: int) -> Numbers:
    """How many pieces run in parallel: TVM fuses outer loops until there are enough, or until one has two bodies."""
    outer = nest.structure.split("R", 1)[0]
    loops = np.concatenate(nest.sizes[: len(outer)], axis=1)
    running = np.cumprod(loops, axis=1)
    enough = running > cores * _PIECES_PER_CORE
    last = np.where(enough.any(axis=1), enough.argmax(axis=1), loops.shape[1] - 1)
    for loop in (np.full(len(last), sketch.fused), *(decisions[at].astype(int) for at in sketch.locations)):
        last = np.where(loop >= 0, np.minimum(last, loop), last)
    return np.asarray(np.take_along_axis(running, last[:, None], 1)[:, 0], dtype=np.float64)


def _level_of(loop: Any, per_level: Sequence[int]) -> Any:
    """The level of a loop that is counted from outside; negative values stay as they are."""
    return np.where(np.asarray(loop) < 0, loop, np.searchsorted(np.cumsum(per_level), loop, side="right"))


def _locations(sketch: Sketch, decisions: Sequence[Numbers], per_level: Sequence[int], count: int) -> list[Numbers]:
    """Where the first producers are computed: the loop and its level."""
    columns = []
    for at in sketch.locations[:_LOCATIONS]:
        columns += [decisions[at], np.asarray(_level_of(decisions[at], per_level), dtype=np.float64)]
    return columns + [np.full(count, np.nan)] * (2 * _LOCATIONS - len(columns))
