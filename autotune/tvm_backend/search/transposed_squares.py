"""Default schedules of what is elementwise behind a transposition: square by square.

Along the last axis of the result, what is read lies apart: a vector would be gathered, one element from each line of
the cache. It lies side by side along another axis. So the elements of a square are computed in vectors along that axis,
into a local array, and are written in vectors along the last axis. `codegen/transposed_loads.py` transposes the square
in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from tvm import sym, tirx
from tvm.ir import TensorRegion

from autotune.tvm_backend.programs import replaced
from autotune.tvm_backend.search.program_blocks import CONDITION, ProgramBlock, calls_of, reads_of
from autotune.tvm_backend.types import BlockRV, Schedule

_SIDES = (16, 8)  # of squares, the preferred one first


def schedule_squares(schedule: Schedule, item: ProgramBlock, parallel_from: int) -> bool:
    """Schedule a block square by square if it reads across its rows; return whether it does.

    Args:
        schedule: The schedule, of a program with this block only.
        parallel_from: How many elements are worth several threads.
    """
    square = _square(item)
    if square is None:
        return False
    axis, side = square
    loops = schedule.get_loops(item.ref)
    rank = len(loops)
    size = prod(int(schedule.get(loop).extent) for loop in loops)
    order = [*(place for place in range(rank) if place not in (axis, rank - 1)), rank - 1, axis]
    result = schedule.cache_write(item.ref, 0, "local")
    schedule.transform_layout(item.ref, ("write", 0), lambda *at: [at[place] for place in order])
    own = list(schedule.get_loops(result))
    across, down = (schedule.split(own[place], [None, side]) for place in (axis, rank - 1))
    own[axis] = across[0]
    own[-1] = down[0]
    schedule.reorder(*own, across[1], down[1])
    schedule.compute_at(item.ref, own[-1], preserve_unit_loops=True)
    _along(schedule, item.ref, [-1, axis - rank])
    schedule.unroll(across[1])
    schedule.vectorize(down[1])
    outer = schedule.fuse(*own)
    if size >= parallel_from:
        schedule.parallel(outer)
    return True


def _along(schedule: Schedule, block: BlockRV, places: Sequence[int]) -> None:
    """Unroll the first of two loops of a block, and make vectors along the second."""
    unrolled, vector = (schedule.get_loops(block)[place] for place in places)
    schedule.reorder(unrolled, vector)
    schedule.unroll(unrolled)
    schedule.vectorize(vector)


def _square(item: ProgramBlock) -> tuple[int, int] | None:
    """The axis along which all that is read across rows lies side by side, and the side of squares; None if none."""
    rank = len(item.spatial)
    if rank < 2 or CONDITION in calls_of(item) or rank != len(item.block.iter_vars):
        return None
    extents = [int(axis.dom.extent) for axis in item.block.iter_vars]
    for axis in range(rank - 1):
        side = next((side for side in _SIDES if extents[axis] % side == 0 and extents[-1] % side == 0), 0)
        if side and _is_read_across(item, axis, side):
            return axis, side
    return None


def _is_read_across(item: ProgramBlock, axis: int, side: int) -> bool:
    """Whether tensors lie side by side along an axis, in the first square and in the last, and one does only there."""
    reads = [region for region in reads_of(item) if prod(map(int, region.source.shape)) > 1]
    along = [_steps(item, region, axis, side) for region in reads]
    rows = [_steps(item, region, -1, side) for region in reads]
    across = [own == {1} and not last <= {0, 1} for own, last in zip(along, rows, strict=True)]
    return any(across) and all(steps <= {0, 1} for steps in along)


def _steps(item: ProgramBlock, region: TensorRegion, axis: int, side: int) -> set[int | None]:
    """How far elements along a side of the first square and of the last lie apart; None where it is not known."""
    extents = [int(var.dom.extent) for var in item.block.iter_vars]
    firsts = ([0] * len(extents), [(extent - 1) // side * side for extent in extents])
    steps: set[int | None] = set()
    for first in firsts:
        places = [_place(item, region, _moved(first, axis, step)) for step in range(side)]
        determined = [place for place in places if place is not None]
        steps.update(later - earlier for earlier, later in pairwise(determined))
        steps.update([None] if len(determined) < side else [])
    return steps


def _moved(point: Sequence[int], axis: int, step: int) -> list[int]:
    moved = list(point)
    moved[axis] += step
    return moved


def _place(item: ProgramBlock, region: TensorRegion, point: Sequence[int]) -> int | None:
    """Where in a tensor the element lies that the block reads at a point; None if that depends on data."""
    flat = tirx.const(0, "int64")
    for bounds, extent in zip(region.region, region.source.shape, strict=True):
        flat = flat * extent + bounds.min
    for variable, value in zip(item.spatial, point, strict=True):
        flat = replaced(flat, variable, tirx.const(value, variable.ty.dtype))
    place = sym.Analyzer().simplify(flat)
    return int(place) if isinstance(place, tirx.IntImm) else None
