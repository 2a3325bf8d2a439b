"""An estimate of how long kernels on tensor cores take, from their tiles, for searches that have no cost model yet.

A block copies tiles of both operands to shared memory, step by step. Its warps load fragments from there and multiply
them. A step takes a multiprocessor the longest of four, besides the instructions that copy: its products, its loads
from shared memory, its traffic with the L2 cache, and what one warp does one thing after the other. A warp does more at
once only where tiles are copied ahead. The costs are fitted to 142 kernels in fp16 and TF32 that an H100 has timed
(`scripts/gpu/fit_estimates.py`). Of the kernels of a task that the fit has not seen, that which is estimated to be
fastest takes 1.26 times the shortest time, and one at random 2.9 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.strategies.space import Floats
from autotune.tvm_backend.cuda.multiprocessors import Multiprocessors
from autotune.tvm_backend.search.occupancy import HOPELESS, GpuLimits
from autotune.tvm_backend.search.tiled_block import Numbers
from autotune.tvm_backend.types import PlainInstruction

_PARTS = [5, 5, 3]  # of the tiles of rows, columns and terms
# What the levels of a tile of rows or columns are.
_BLOCKS = slice(0, 2)
_WARPS = 2
_OF_A_WARP = slice(3, 5)
_LANES = 32
_TENSOR_CORES = 4  # of a multiprocessor
_WIDEST = 8  # elements that `mma.sync` sketches copy at a time, which do not sample it
_ADDRESSES = 40  # registers of a thread besides fragments
_MAX_REGISTERS = 255
_SHARED_OF_A_BLOCK = 1024  # bytes that CUDA keeps
_MIN_ASYNC = 4  # bytes that `cp.async` copies at least
_REGISTERS_AT_ONCE = 8  # of a thread, as a multiprocessor hands them out

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TensorCosts:
    """What kernels on tensor cores cost on a multiprocessor, in cycles unless it says otherwise.

    Attributes:
        start: Of a kernel.
        wait: For a tile that is copied.
        copy: Of a thread, one after the other.
        copy_of_a_warp: Of a scheduler.
        product: Of two fragments, on the four tensor cores together.
        terms: Until the products of a fragment's terms are there.
        fragment: To load one.
        l2_bytes, stored_bytes: Bytes a cycle from the L2 cache, and to memory.
        most_results: Registers of a thread for sums, of 255. With more, fragments are spilled.
        spilled: How many times as long that takes.
        idle: How many times as long it takes where some threads copy nothing.
    """

    start: float
    wait: float
    copy: float
    copy_of_a_warp: float
    product: float
    terms: float
    fragment: float
    l2_bytes: float
    stored_bytes: float
    most_results: float
    spilled: float
    idle: float


TENSOR_COSTS = TensorCosts(
    start=1670,
    wait=357,
    copy=32,
    copy_of_a_warp=4.67,
    product=8,
    terms=32,
    fragment=4,
    l2_bytes=17.1,
    stored_bytes=14,
    most_results=96,
    spilled=2.86,
    idle=2,
)


@dataclass(frozen=True)
class Fragments:
    """What one instruction multiplies: rows by terms, and terms by columns. `size` is of an element, in bytes."""

    rows: int
    columns: int
    terms: int
    size: int

    @property
    def registers(self) -> int:
        """Of a thread, for an operand: counted twice, as WMMA keeps them."""
        return self.rows * self.terms * self.size * 2 // (4 * _LANES)

    @property
    def work(self) -> float:
        """That of a product, where that of 16 rows, columns and terms in fp16 is 1. TF32 has half the rate."""
        return self.rows * self.columns * self.terms * self.size / 2**13

    @property
    def loads(self) -> float:
        """That of an operand's fragment, where that of 16 rows and terms in fp16 is 1."""
        return (self.rows + self.columns) * self.terms * self.size / 2**10


_INTRINSICS = {
    "wmma_sync_16x16x16_f16": Fragments(16, 16, 16, 2),
    "wmma_sync_16x16x16_bf16": Fragments(16, 16, 16, 2),
    "wmma_sync_16x16x8_tf32": Fragments(16, 16, 8, 4),
    "mma_sync_m16n8k8_f16": Fragments(16, 8, 8, 2),
}


@dataclass(frozen=True)
class TensorSketch:
    """What the sampling instructions of a sketch on tensor cores decide, by their position among these.

    Attributes:
        tiles: The instructions that tile rows, columns and terms, which are counted in fragments.
        widths: For each operand, the instruction that chooses how many elements are copied at a time, and from which
            numbers; none where that is fixed.
        ahead: By how many steps tiles are copied ahead.
        shares: How many blocks share a sum.
    """

    fragments: Fragments
    tiles: tuple[int, ...]
    widths: tuple[tuple[int, tuple[int, ...]], ...]
    ahead: int
    shares: int

    @classmethod
    def read(cls, instructions: Sequence[PlainInstruction]) -> TensorSketch | None:
        """Read instructions in JSON form, without postprocessing. None where no block is on tensor cores."""
        fragments = _fragments(instructions)
        samples = [item for item in instructions if str(item[0]).startswith("Sample")]
        tiles = [(place, item[2][0]) for place, item in enumerate(samples) if str(item[0]).endswith("Tile")]
        if fragments is None or [count for _, count in tiles] != _PARTS:
            return None
        places = {item[3][0]: place for place, item in enumerate(samples) if item[0] == "SampleCategorical"}
        fetches = [inputs[1] for inputs in annotated(instructions, "meta_schedule.cooperative_fetch")]
        widths = [(places[name], tuple(map(int, samples[places[name]][2][0]))) for name in fetches[-2:]]
        stages = [max(inputs[1]) for inputs in annotated(instructions, "software_pipeline_stage")]
        ahead = max(stages, default=0)
        return cls(fragments, tuple(place for place, _ in tiles), tuple(widths), ahead, shares_of(instructions))


def annotated(instructions: Sequence[PlainInstruction], name: str) -> list[Any]:
    """Return the operands of the instructions that annotate something with a name: what, and with which value."""
    return [item[1] for item in instructions if item[0] == "Annotate" and item[2][0] == name]


def _fragments(instructions: Sequence[PlainInstruction]) -> Fragments | None:
    names = [str(inputs[1]).strip('"') for inputs in annotated(instructions, "meta_schedule.auto_tensorize")]
    named = (part for name in names for start, part in _INTRINSICS.items() if name.startswith(start))
    return next(named, None)


def shares_of(instructions: Sequence[PlainInstruction]) -> int:
    """Return how many blocks share a sum in a sketch; 1 where none does."""
    factored = {item[1][0] for item in instructions if item[0] == "RFactor"}
    splits = (item for item in instructions if item[0] == "Split" and item[3][0] in factored)
    return next((int(item[1][1]) for item in splits), 1)


@dataclass(frozen=True)
class TensorNests:
    """The tiles of n candidates of a sketch, each [n].

    Attributes:
        fragments: What one instruction multiplies.
        shares: How many blocks share a sum.
        ahead: By how many steps tiles are copied ahead.
        blocks: Of the whole kernel.
        warps: Of a block.
        rows, columns: Fragments of results of a warp.
        steps: Between which tiles are copied.
        terms: Fragments of a step along the terms.
        loaded: Fragments along the terms that a warp holds at the same time.
        copies: Of a thread in a step, of both operands.
        idle: Whether some threads have nothing to copy. TVM refuses many of these schedules.
        waits: Whether a warp waits for each tile: it is not copied ahead, or in pieces too small for that.
        tile: Bytes of both operands that a block copies for a step.
        shared: Bytes of shared memory of a block.
        spills: Whether the compiler moves sums to memory where there are many.
    """

    fragments: Fragments
    shares: int
    ahead: Numbers
    blocks: Numbers
    warps: Numbers
    rows: Numbers
    columns: Numbers
    steps: Numbers
    terms: Numbers
    loaded: Numbers
    copies: Numbers
    idle: Flags
    waits: Flags
    tile: Numbers
    shared: Numbers
    spills: bool

    @classmethod
    def of(cls, sketch: TensorSketch, decisions: Sequence[Numbers], extents: tuple[int, int]) -> TensorNests:
        """Read the decisions of candidates.

        Args:
            decisions: What each sampling instruction decided: [n, parts] for tiles, otherwise [n].
            extents: How many results the product has, and how many terms each of them.
        """
        rows, columns, terms = (decisions[place] for place in sketch.tiles)
        part = sketch.fragments
        covered = rows.prod(axis=1) * part.rows * columns.prod(axis=1) * part.columns
        batch = np.maximum(1, np.round(extents[0] / covered))  # of products with matrices of their own
        blocks = batch * rows[:, _BLOCKS].prod(axis=1) * columns[:, _BLOCKS].prod(axis=1) * sketch.shares
        of_rows, of_columns = (tile[:, _OF_A_WARP].prod(axis=1) for tile in (rows, columns))
        warps = rows[:, _WARPS] * columns[:, _WARPS]
        in_step = terms[:, 1:].prod(axis=1)
        sides = (rows[:, _WARPS] * of_rows * part.rows, columns[:, _WARPS] * of_columns * part.columns)
        widths = [np.array(values)[decisions[place].astype(int)] for place, values in sketch.widths] or [_WIDEST] * 2
        elements = [side * in_step * part.terms for side in sides]
        pieces = [count / (warps * _LANES * width) for count, width in zip(elements, widths, strict=True)]
        waits = (np.minimum(*widths) * part.size < _MIN_ASYNC) | np.full(len(rows), sketch.ahead == 0)
        tile = sum(elements) * part.size
        return cls(
            fragments=part,
            shares=sketch.shares,
            ahead=np.full(len(rows), float(sketch.ahead)),
            blocks=blocks,
            warps=warps,
            rows=of_rows,
            columns=of_columns,
            steps=terms[:, 0],
            terms=in_step,
            loaded=terms[:, 2],
            copies=sum(map(np.ceil, pieces)),
            idle=np.minimum(*pieces) < 1,
            waits=waits,
            tile=tile,
            shared=tile * (sketch.ahead + 1),
            spills=True,
        )


def tensor_throughput(
    nests: TensorNests, extents: tuple[int, int], limits: GpuLimits, costs: TensorCosts = TENSOR_COSTS
) -> Floats:
    """Estimate the throughput of kernels relative to the arithmetic peak of the GPU in fp32, [n]; higher is better.

    Args:
        extents: How many results the product has, and how many terms each of them.
    """
    chip = limits.chip
    part = nests.fragments
    results = nests.rows * nests.columns * part.rows * part.columns / _LANES
    most = _most_registers(nests, chip)
    held = (nests.rows + nests.columns) * nests.loaded
    registers = np.minimum(most, results + held * part.registers + _ADDRESSES)
    at_once = np.minimum(_together(nests, registers, chip), np.ceil(nests.blocks / chip.count))
    rounds = np.ceil(nests.blocks / (chip.count * at_once))
    stored = extents[0] * 4 * nests.shares / (chip.count * costs.stored_bytes)
    cycles = costs.start + rounds * nests.steps * _step(nests, at_once, costs) + stored
    spilled = nests.spills & (results > costs.most_results * most / _MAX_REGISTERS)
    cycles = np.where(spilled, costs.spilled * cycles, cycles) * np.where(nests.idle, costs.idle, 1)
    fits = (nests.shared <= limits.max_shared_default) & (nests.warps * _LANES <= limits.max_threads)
    speed = extents[0] * extents[1] / (chip.count * chip.multiply_adds) / cycles
    return np.asarray(np.where(fits, speed, HOPELESS * speed))


def _most_registers(nests: TensorNests, chip: Multiprocessors) -> Numbers:
    """Return how many registers a thread may have, so that a multiprocessor has room for its block."""
    share = np.floor(chip.registers / (nests.warps * _LANES * _REGISTERS_AT_ONCE)) * _REGISTERS_AT_ONCE
    return np.asarray(np.minimum(_MAX_REGISTERS, share))


def _step(nests: TensorNests, at_once: Numbers, costs: TensorCosts) -> Numbers:
    """Return the cycles of a step of the blocks that a multiprocessor holds at once."""
    part = nests.fragments
    sums = nests.rows * nests.columns
    warps = at_once * nests.warps
    product = costs.product * part.work
    alone = nests.terms * (sums * _TENSOR_CORES * product + costs.terms)
    copying = nests.copies * costs.copy
    hidden = np.maximum((costs.wait + copying) / np.maximum(nests.ahead, 1), copying + alone)
    step = np.maximum.reduce(
        [
            warps * sums * nests.terms * product,
            warps * (nests.rows + nests.columns) * nests.terms * costs.fragment * part.loads,
            at_once * nests.tile / costs.l2_bytes,
            np.where(nests.waits, costs.wait + copying + alone, hidden),
        ]
    )
    return np.asarray(step + warps * nests.copies * costs.copy_of_a_warp)


def _together(nests: TensorNests, registers: Numbers, chip: Multiprocessors) -> Numbers:
    """Count the blocks that a multiprocessor holds at the same time; one where it cannot hold any."""
    threads = nests.warps * _LANES
    room = [
        chip.shared / (nests.shared + _SHARED_OF_A_BLOCK),
        chip.threads / threads,
        chip.registers / (registers * threads),
        np.full(len(threads), float(chip.blocks)),
    ]
    return np.asarray(np.maximum(1, np.floor(np.minimum.reduce(room))))
