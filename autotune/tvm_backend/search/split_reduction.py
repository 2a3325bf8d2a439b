"""Sketches for GPUs that split a long sum among blocks ("split-K"), where the results are too few to fill the GPU.

A product of 49 rows, 512 columns and 4608 terms makes eight tiles of 64 by 64, and an H100 has 132 multiprocessors. So
the terms are divided among several blocks, each of which sums its share, and a second kernel adds the partial sums. The
operators that are fused to the product are computed where they are added. How many blocks share a sum is fixed in a
sketch: as many as fill the GPU, and half of them.
"""

from __future__ import annotations

import math

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import Trace

from autotune.tvm_backend.cuda.multiprocessors import multiprocessors
from autotune.tvm_backend.types import BlockRV, IRModule, Target

_ROOT = "root"
_TILE = 64 * 64  # results of a block that reads each of its inputs often enough
_MIN_TERMS = 64  # of a share
_MAX_SHARES = 32


def split_schedules(program: IRModule, target: Target) -> list[Schedule]:
    """Return the program with its sum split, once for each number of shares; none where that is of no use."""
    if target.kind.name != "cuda":
        return []
    made = []
    for shares in shares_of_sum(program, target):
        schedule = Schedule(program)
        try:
            _split(schedule, shares)
        except ScheduleError:  # a block that cannot be moved there
            continue
        made.append(schedule)
    return made


def joined(program: IRModule, head: Trace, tail: Trace) -> Schedule:
    """Return a program scheduled by one trace and then by another."""
    schedule = Schedule(program)
    decisions = {**head.decisions, **tail.decisions}
    Trace([*head.insts, *tail.insts], decisions).apply_to_schedule(schedule, False)
    return schedule


def shares_of_sum(program: IRModule, target: Target) -> list[int]:
    """How many blocks are to share a sum: the divisors of its longest loop that are nearest to filling the GPU."""
    schedule = Schedule(program)
    block = _only_product(schedule)
    if block is None:
        return []
    spatial, reduction = _extents(schedule, block)
    tiles = math.ceil(math.prod(spatial) / _TILE)
    wanted = min(multiprocessors(target).count / tiles, _MAX_SHARES, math.prod(reduction) / _MIN_TERMS)
    longest = max(reduction)
    possible = [shares for shares in range(2, int(wanted) + 1) if longest % shares == 0]
    nearest = {max((shares for shares in possible if shares <= most), default=0) for most in (wanted, wanted / 2)}
    return sorted(nearest - {0})


def extents_of_product(program: IRModule) -> tuple[int, int] | None:
    """How many results the only product of a program has, and how many terms each of them; None if it has none."""
    schedule = Schedule(program)
    block = _only_product(schedule)
    if block is None:
        return None
    spatial, reduction = _extents(schedule, block)
    return math.prod(spatial), math.prod(reduction)


def shortest_sum(program: IRModule) -> int:
    """How many terms the shortest sum or maximum of a program has; 0 where it has none."""
    schedule = Schedule(program)
    blocks = schedule.get_child_blocks(schedule.get_sblock(_ROOT))
    sums = (_extents(schedule, block)[1] for block in blocks if _is_sum(schedule, block))
    return min(map(math.prod, sums), default=0)


def _only_product(schedule: Schedule) -> BlockRV | None:
    """The one block that sums, if there is just one and it sums products of elements that several results share."""
    blocks = schedule.get_child_blocks(schedule.get_sblock(_ROOT))
    sums = [block for block in blocks if _is_sum(schedule, block)]
    if len(sums) != 1 or len(schedule.get(sums[0]).reads) != 2:
        return None
    return sums[0]


def _is_sum(schedule: Schedule, block: BlockRV) -> bool:
    return any(int(item.iter_type) != 0 for item in schedule.get(block).iter_vars)


def _extents(schedule: Schedule, block: BlockRV) -> tuple[list[int], list[int]]:
    """The extents of the loops over the results of a block, and of those over its terms."""
    variables = schedule.get(block).iter_vars
    extents = [(int(item.iter_type) == 0, int(item.dom.extent)) for item in variables]
    return [extent for over, extent in extents if over], [extent for over, extent in extents if not over]


def _split(schedule: Schedule, shares: int) -> None:
    """Split the sum, and add the partial sums where what follows is computed."""
    block = _only_product(schedule)
    assert block is not None, "the caller knows that there is one"
    spatial, reduction = _extents(schedule, block)
    place = len(spatial) + reduction.index(max(reduction))
    outer, _ = schedule.split(schedule.get_loops(block)[place], [shares, None])
    loops = list(schedule.get_loops(schedule.rfactor(outer, 0)))
    schedule.reorder(loops.pop(place), *loops)  # as its results lie, without which MetaSchedule does not tile it
    last = _last_consumer(schedule, block)
    if last is not None:
        schedule.compute_at(block, schedule.get_loops(last)[-1])
        schedule.set_scope(block, 0, "local")


def _last_consumer(schedule: Schedule, block: BlockRV) -> BlockRV | None:
    """Inline what follows a block into the last of it, and return that; None where nothing follows, or no chain."""
    last = None
    while len(consumers := schedule.get_consumers(last or block)) == 1:
        if last is not None:
            schedule.compute_inline(last)
        (last,) = consumers
    return None if consumers else last
