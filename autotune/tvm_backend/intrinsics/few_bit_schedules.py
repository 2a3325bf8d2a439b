"""Schedules of products of packed weights: a rule with sampled tiles for MetaSchedule, and a tile that is good untuned.

A tile is some rows of activations by some chunks of 16 rows of the matrix. Its sums stay in registers while a loop goes
over the blocks; codes are unpacked once for all rows of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from autotune.tvm_backend.intrinsics.amx_and_vector_tiles import INTRINSIC, block_names
from autotune.tvm_backend.intrinsics.few_bit_dots import dot_named
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.types import BlockRV, IRModule, LoopRV, PrimFunc, Schedule

# Names of blocks; that of the products of a block is the name of the rule, too.
PACKED_DOT = "packed_dot"
UNPACKED = "packed_unpack"
_MAX_ROWS = 16  # of a tile, as the next
_MAX_CHUNKS = 8
_MAX_SUMS = 8  # vectors of a tile that is chosen by hand
_ROWS_FROM = 16  # from where on threads may share rows, too


@dataclass(frozen=True)
class TileOrder:
    """How tiles follow each other.

    Attributes:
        rows_parallel: Whether threads share tiles of rows, too; otherwise only those of the matrix.
        unpack_once: Whether the codes of a tile's chunks are unpacked for all of its tiles of rows at once.
    """

    rows_parallel: bool = False
    unpack_once: bool = False


_ORDERS = (TileOrder(), TileOrder(unpack_once=True), TileOrder(rows_parallel=True))


def _rule(schedule: Schedule, block: BlockRV) -> list[Schedule]:
    rows, _ = _extents(schedule, block)
    orders = _ORDERS if rows >= _ROWS_FROM else _ORDERS[:1]
    return [_scheduled(schedule.copy(), block, order, None) for order in orders]


def default_schedule(program: IRModule | PrimFunc) -> Schedule | None:
    """Return a good schedule for a product of packed weights; None for any other program."""
    schedule = tvm.s_tir.Schedule(program)
    if PACKED_DOT not in block_names(schedule):
        return None
    block = schedule.get_sblock(PACKED_DOT)
    rows, chunks = _extents(schedule, block)
    row_tile = max(size for size in range(1, _MAX_SUMS + 1) if rows % size == 0)
    chunk_tile = max(size for size in range(1, max(_MAX_SUMS // row_tile // 2, 1) + 1) if chunks % size == 0)
    return _scheduled(schedule, block, _ORDERS[0], (row_tile, chunk_tile))


def _scheduled(schedule: Schedule, block: BlockRV, order: TileOrder, tile: tuple[int, int] | None) -> Schedule:
    name = str(schedule.get(block).annotations[INTRINSIC])
    schedule.unannotate(block, INTRINSIC)
    (sums,) = schedule.get_consumers(block)
    (result,) = schedule.get_consumers(sums)
    row, column = schedule.get_loops(result)
    chunk, lane = schedule.split(column, [None, LANES])
    outer_row, row = _tiled(schedule, row, _MAX_ROWS, tile and tile[0])
    outer_chunk, chunk = _tiled(schedule, chunk, _MAX_CHUNKS, tile and tile[1])
    schedule.reorder(outer_chunk, outer_row, row, chunk, lane)
    if order.rows_parallel:
        outer_row = outer_chunk = schedule.fuse(outer_chunk, outer_row)
    schedule.parallel(outer_chunk)
    for loop in (row, chunk):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    unpacked = schedule.get_sblock(UNPACKED)
    schedule.compute_at(sums, outer_row, preserve_unit_loops=True)
    *_, row, chunk, lane, step = schedule.get_loops(sums)
    schedule.reorder(step, row, chunk, lane)
    schedule.compute_at(block, step, preserve_unit_loops=True)
    schedule.compute_at(unpacked, outer_chunk if order.unpack_once else step, preserve_unit_loops=True)
    # Reductions are decomposed when all blocks are in their places.
    _multiply(schedule, block, name)
    _vectorize_codes(schedule, unpacked, whole=order.unpack_once)
    _sum_blocks(schedule, sums, step)
    return schedule


def _tiled(schedule: Schedule, loop: LoopRV, most: int, size: int | None) -> list[LoopRV]:
    decision = None if size is None else [int(schedule.get(loop).extent) // size, size]
    return list(schedule.split(loop, schedule.sample_perfect_tile(loop, 2, most, decision=decision)))


def _sum_blocks(schedule: Schedule, sums: BlockRV, step: LoopRV) -> None:
    """Keep the sums of a tile in registers over the loop over blocks."""
    *_, row, chunk, lane = schedule.get_loops(sums)
    schedule.vectorize(lane)  # before `decompose_reduction`, after which it is no reduction any more
    init = schedule.decompose_reduction(sums, step)
    *_, first_row, first_chunk, _ = schedule.get_loops(init)
    for loop in (row, chunk, first_row, first_chunk):
        schedule.unroll(loop)
    schedule.set_scope(init, 0, "local")


def _multiply(schedule: Schedule, block: BlockRV, instruction: str) -> None:
    """Compute the products of a block of a tile, by an instruction if there is one."""
    *_, row, chunk, _, lane, half, group, place = schedule.get_loops(block)
    schedule.reorder(group, half, chunk, row, lane, place)
    if not instruction:
        schedule.reorder(place, lane)
        schedule.vectorize(lane)
    init = schedule.decompose_reduction(block, group)
    for loop in (group, half, chunk, row):
        schedule.unroll(loop)
    *_, first_chunk, first_row, first_lane = schedule.get_loops(init)
    schedule.unroll(first_chunk)
    schedule.unroll(first_row)
    if instruction:
        schedule.vectorize(first_lane)
        _, lanes = schedule.split(lane, [None, _lanes(instruction)])
        schedule.tensorize(lanes, instruction)
    else:
        schedule.unroll(place)
    # After `tensorize`, as the instruction is described in the global scope, where 1 KiB or more is on the heap.
    schedule.set_scope(init, 0, "local")


def _lanes(instruction: str) -> int:
    dot = dot_named(instruction)
    assert dot is not None, "products name instructions that there are"
    return dot.lanes


def _vectorize_codes(schedule: Schedule, unpacked: BlockRV, *, whole: bool) -> None:
    *outer, half, group, lane, place = schedule.get_loops(unpacked)
    schedule.vectorize(schedule.fuse(lane, place))
    if not whole:
        for loop in (outer[-2], half, group):  # chunks; of blocks there is one
            schedule.unroll(loop)
        schedule.set_scope(unpacked, 0, "local")


def _extents(schedule: Schedule, block: BlockRV) -> list[int]:
    looked_at = schedule.copy()  # what is asked of a schedule becomes a part of its trace
    return [int(looked_at.get(loop).extent) for loop in looked_at.get_loops(block)[:2]]


def register() -> None:
    """Register the rule under the name of its block, as MetaSchedule looks for it."""
    tvm.register_global_func(f"s_tir.meta_schedule.cpu.{PACKED_DOT}", _rule, override=True)
