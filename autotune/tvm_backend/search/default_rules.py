"""Default schedules of programs without products: maxima, sums, pools, softmax, splits and what is elementwise.

A program without a trial is compiled by them. They are sane at every size: no reduction is computed again for each
element that reads it, threads share rows or columns, and vectors lie along the last axis. What MetaSchedule draws at
random has none of this for certain.

There are two forms. If the values that are reduced lie side by side, a thread takes a row from its first step to its
last, and a reduction runs in several vectors of partial results. Else a thread takes a few vectors of columns, and each
step of the reduction is one on vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import tvm
import tvm_ffi
from tvm.s_tir import SBlockRealize, ScheduleError

from autotune.tvm_backend.search.program_blocks import (
    REDUCED,
    ProgramBlock,
    blocks_of,
    calls_of,
    count_functions,
    has,
    has_condition_along_rows,
    has_one_end,
    is_dear,
    is_foreign,
    is_over_windows,
    is_product,
    is_shared,
    reads_of,
    size_of,
    uses,
)
from autotune.tvm_backend.search.transposed_squares import schedule_squares
from autotune.tvm_backend.types import BlockRV, IRModule, LoopRV, Schedule
from autotune.tvm_backend.untrusted_traces import WHOLE_VECTORS

_LANES = 16
_VECTORS = 4  # of partial results: a step on one need not wait for the step before it on the same
_MAX_COLUMNS = 64
_FEW = 8
_FEWEST = 4
_FEW_CALLS = 2
_UNROLLED = 32  # steps of a reduction
_PARALLEL_FROM = 4096  # elements; fewer are done before other threads have begun


class _NoRule(Exception):
    """A program is of a form for which there is no rule."""


def default_rule(program: IRModule) -> Schedule | None:
    """Return a schedule of a program that needs no search to be sane; None for one with products, or of another form.

    Args:
        program: The tensor program of a task, for a CPU.
    """
    schedule = tvm.s_tir.Schedule(program, debug_mask="none", error_render_level="none")
    try:
        return schedule if _apply(schedule) else None
    # Of a form that these rules do not know, or one that TVM fails at, as a second reduction to a single number.
    except (ScheduleError, _NoRule, tvm.error.InternalError):
        return None


def _apply(schedule: Schedule) -> bool:
    blocks = blocks_of(schedule)
    if not blocks or any(is_foreign(item) or is_product(item) for item in blocks):
        return False
    if not has_one_end(blocks):
        return _parts(schedule, blocks)
    kept = _inlined(schedule, blocks)
    if not any(item.reduces for item in kept):
        for item in kept:
            _elementwise(schedule, item)
        return True
    shared = _shared(kept)
    if _lies_in_rows(kept, shared):
        _by_rows(schedule, kept, shared)
    else:
        _by_columns(schedule, kept, shared)
    return True


def _inlined(schedule: Schedule, blocks: Sequence[ProgramBlock]) -> list[ProgramBlock]:
    """Inline what is computed once for each element that reads it, and return the other blocks.

    What has two functions in it by then stays: TVM takes minutes to simplify a formula in a formula in a formula.
    """
    kept = []
    for item in blocks[:-1]:
        consumers = [schedule.get(ref) for ref in schedule.get_consumers(item.ref)]
        again = len(consumers) > 1 or any(is_over_windows(consumer) for consumer in consumers)
        now = replace(item, block=schedule.get(item.ref))
        if item.reduces or (again and is_dear(now)) or count_functions(now) > 1:
            kept.append(item)
            continue
        try:
            schedule.compute_inline(item.ref)
        except ScheduleError:
            kept.append(item)
    names = {str(item.block.name_hint) for item in (*kept, blocks[-1])}
    return [item for item in blocks_of(schedule) if str(item.block.name_hint) in names]


def _shared(kept: Sequence[ProgramBlock]) -> list[int]:
    """The axes of the last block that all reductions have: a result of theirs is for all elements along others."""
    *before, last = kept
    if last.reduces:
        return list(range(len(last.spatial)))
    reduced = [item.block.writes[0].source for item in before if item.reduces]
    regions = [region for region in last.block.reads if any(region.source.same_as(buffer) for buffer in reduced)]
    return [place for place, axis in enumerate(last.spatial) if all(uses(region, axis) for region in regions)]


def _lies_in_rows(kept: Sequence[ProgramBlock], shared: Sequence[int]) -> bool:
    """Whether what is reduced lies side by side."""
    last = kept[-1]
    if len(shared) < len(last.spatial):
        return len(last.spatial) - 1 not in shared
    first = next(item for item in kept if item.reduces)
    widest = max(reads_of(first), key=lambda region: len(region.region))
    return not any(has(widest.region[-1].min, axis) for axis in first.spatial)


def _parts(schedule: Schedule, blocks: Sequence[ProgramBlock]) -> bool:
    """Schedule a program with several results that share nothing, as those of a split; return whether it is one."""
    inner = [item for item in blocks if schedule.get_consumers(item.ref)]
    if any(item.reduces for item in blocks) or any(is_shared(schedule, item) for item in inner):
        return False
    for item in inner:
        schedule.compute_inline(item.ref)
    for item in blocks_of(schedule):
        if has_condition_along_rows(item):
            _by_cut_rows(schedule, item)
        else:
            _elementwise(schedule, item)
    return True


def _by_cut_rows(schedule: Schedule, item: ProgramBlock) -> None:
    """Cut rows where a condition begins to hold. LLVM makes vectors of the plain loops that this leaves."""
    *outer, row = schedule.get_loops(item.ref)
    _cut(schedule, row)
    if outer and size_of(item.block) >= _PARALLEL_FROM:
        schedule.parallel(schedule.fuse(*outer))


def _elementwise(schedule: Schedule, item: ProgramBlock) -> None:
    """Vectors lie in rows of the result: across rows, each lane would compute where its element is."""
    if schedule_squares(schedule, item, _PARALLEL_FROM):
        return
    loops = list(schedule.get_loops(item.ref)) or [schedule.add_unit_loop(item.ref)]
    most = _MAX_COLUMNS if len(calls_of(item)) <= _FEW_CALLS else _LANES  # LLVM takes minutes for wide long formulas
    extents = [_extent(schedule, loop) for loop in loops]
    inside = next((count for count in range(1, len(loops)) if prod(extents[-count:]) >= _LANES), len(loops))
    outer, inner = _vectors(schedule, schedule.fuse(*loops[-inside:]), most)
    schedule.vectorize(inner)
    if prod(extents) < _PARALLEL_FROM:
        return
    if inside < len(loops):
        schedule.parallel(schedule.fuse(*loops[:-inside]))
    elif extents[-1] % _extent(schedule, inner) == 0:
        schedule.parallel(outer)


def _by_rows(schedule: Schedule, kept: Sequence[ProgramBlock], shared: Sequence[int]) -> None:
    """A parallel iteration computes all blocks for a row."""
    steps = [step for item in kept for step in (*_partial_results(schedule, item), (item.ref, 0))]
    row = _together(schedule, [ref for ref, _ in steps], [schedule.get_loops(kept[-1].ref)[place] for place in shared])
    for ref, width in steps:
        loops = _inside(schedule, ref, row)
        if width:
            _along_vectors(schedule, ref, loops, width)
        elif loops and not any(_is_reduced(schedule, ref, loop) for loop in loops):
            _, inner = _vectors(schedule, schedule.fuse(*loops), _LANES)
            schedule.vectorize(inner)


def _partial_results(schedule: Schedule, item: ProgramBlock) -> list[tuple[BlockRV, int]]:
    """Split blocks off a reduction that compute partial results, and return them with how many they compute.

    Each but the first of them reduces pairs of the results of the one before, on a vector.
    """
    if not item.reduces or len(item.block.writes) > 1:
        return []
    extents = [int(axis.dom.extent) for axis in item.block.iter_vars if int(axis.iter_type) == REDUCED]
    extent = prod(extents)
    loop = schedule.fuse(*schedule.get_loops(item.ref)[len(item.spatial) :])
    deep = sum(size > 1 for size in extents) > 2  # where TVM does not see that rows lie one behind the other
    width = _partial_width(extent, extents[-1] if deep else extent)
    partial = []
    is_even = width and width % _FEW == 0
    if not is_even and extent >= _LANES and is_dear(item):  # it is computed on whole vectors, and reduced afterwards
        partial.append((_part(schedule, item, loop, extent), extent))
        loop = schedule.get_loops(item.ref)[-1]
    while width > 1:
        partial.append((_part(schedule, item, loop, width), width))
        loop = schedule.get_loops(item.ref)[-1]
        width = width // 2 if width % 2 == 0 else 0
    return partial


def _partial_width(extent: int, row: int) -> int:
    """How many partial results a reduction has; 0 for none, as it is too short for them, or cannot be split evenly.

    Args:
        extent: How many elements are reduced.
        row: How many of them lie side by side: a vector across their end would be gathered.
    """
    widths = [width for width in range(_FEWEST, _VECTORS * _LANES + 1) if extent % width == 0 and extent >= 2 * width]
    in_rows = [width for width in widths if row % width == 0 and width >= _LANES and width % _FEW == 0]
    return max(in_rows or widths, key=lambda width: (width % _LANES == 0, width % _FEW == 0, width), default=0)


def _part(schedule: Schedule, item: ProgramBlock, loop: LoopRV, width: int) -> BlockRV:
    _, lane = schedule.split(loop, [None, width])
    part = schedule.rfactor(lane, len(item.block.writes[0].source.shape))
    if width <= _VECTORS * _LANES:
        schedule.set_scope(part, 0, "local")  # LLVM keeps it in registers
    return part


def _along_vectors(schedule: Schedule, ref: BlockRV, loops: Sequence[LoopRV], width: int) -> None:
    """Make the innermost loop of a reduction to partial results the one over them."""
    steps = [loop for loop in loops if _is_reduced(schedule, ref, loop)]
    lane = next(loop for loop in loops if loop not in steps and _extent(schedule, loop) == width)
    others = [loop for loop in loops if loop not in steps and loop is not lane]
    if width > _VECTORS * _LANES:
        outer, lane = _vectors(schedule, lane, _LANES)
        others.append(outer)
    schedule.reorder(*others, *steps, lane)
    schedule.vectorize(lane)
    schedule.decompose_reduction(ref, steps[0])


def _by_columns(schedule: Schedule, kept: Sequence[ProgramBlock], shared: Sequence[int]) -> None:
    """A parallel iteration computes all blocks for some columns; for all of a row that cannot be split evenly."""
    loops = schedule.get_loops(kept[-1].ref)
    spatial = loops[: len(kept[-1].spatial)]
    chosen = [spatial[place] for place in shared]
    extent = _extent(schedule, chosen[-1])
    width = _even_width(extent, _MAX_COLUMNS) or extent
    outer, inner = schedule.split(chosen[-1], [None, width])
    others = [loop for place, loop in enumerate(spatial) if place not in shared]
    schedule.reorder(*chosen[:-1], outer, *others, *loops[len(spatial) :], inner)
    part = _together(schedule, [item.ref for item in kept], [*chosen[:-1], outer])
    for item in kept:
        _along_columns(schedule, item.ref, part, width)


def _along_columns(schedule: Schedule, ref: BlockRV, part: LoopRV, width: int) -> None:
    """Make the innermost loop of a block one on vectors of columns."""
    loops = _inside(schedule, ref, part)
    reduced = [loop for loop in loops if _is_reduced(schedule, ref, loop)]
    *rest, columns = [loop for loop in loops if loop not in reduced]
    if not reduced and _extent(schedule, columns) > width:  # what windows read is wider than their results
        _cut(schedule, columns)
        return
    if _extent(schedule, columns) > _MAX_COLUMNS:
        outer, columns = _vectors(schedule, columns, _LANES)
        rest.append(outer)
    schedule.reorder(*rest, *reduced, columns)
    schedule.vectorize(columns)
    if not reduced:
        return
    schedule.decompose_reduction(ref, reduced[0])
    if prod(_extent(schedule, loop) for loop in reduced) <= _UNROLLED:
        for loop in reduced:
            schedule.unroll(loop)


def _together(schedule: Schedule, order: Sequence[BlockRV], loops: Sequence[LoopRV]) -> LoopRV:
    """Fuse loops of the last block, make them parallel, and compute all blocks inside."""
    *before, last = order
    work = max(prod(_extent(schedule, loop) for loop in schedule.get_loops(ref)) for ref in order)
    if loops:
        schedule.reorder(*loops)
        fused = schedule.fuse(*loops)
    else:
        fused = schedule.add_unit_loop(schedule.get_loops(last)[0] if schedule.get_loops(last) else last)
    for ref in reversed(before):
        schedule.compute_at(ref, fused, preserve_unit_loops=True)
    if work >= _PARALLEL_FROM and _extent(schedule, fused) > 1:
        schedule.parallel(fused)
    return fused


def _inside(schedule: Schedule, ref: BlockRV, loop: LoopRV) -> list[LoopRV]:
    """The loops of a block inside of one of them."""
    outer = schedule.get(loop)
    loops = schedule.get_loops(ref)
    place = next(index for index, item in enumerate(loops) if schedule.get(item).same_as(outer))
    return list(loops[place + 1 :])


def _is_reduced(schedule: Schedule, ref: BlockRV, loop: LoopRV) -> bool:
    """Whether a loop of a block is over an axis that is reduced."""
    realize = _realize_of(schedule, ref)
    variable = schedule.get(loop).loop_var
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return any(int(axis.iter_type) == REDUCED and has(value, variable) for axis, value in pairs)


def _realize_of(schedule: Schedule, ref: BlockRV) -> SBlockRealize:
    inner = schedule.get(schedule.get_loops(ref)[-1])
    block = schedule.get(ref)
    realized: list[SBlockRealize] = []
    tvm_ffi.structural_walk(inner, ((SBlockRealize, realized.append),))
    return next(item for item in realized if item.block.same_as(block))


def _vectors(schedule: Schedule, loop: LoopRV, most: int) -> list[LoopRV]:
    """Split a loop into vectors, the last of which may be shorter."""
    extent = _extent(schedule, loop)
    width = _even_width(extent, most) or _LANES
    outer, inner = schedule.split(loop, [None, width])
    if extent % width:  # else each lane would have a condition
        _cut(schedule, outer)
    return [outer, inner]


def _even_width(extent: int, most: int) -> int:
    """The width of vectors that a row is made of; 0 where it is not made of whole ones."""
    if extent <= _LANES:
        return extent
    return next((width for width in (*range(most, 0, -_LANES), *range(most, 0, -_FEW)) if extent % width == 0), 0)


def _cut(schedule: Schedule, loop: LoopRV) -> None:
    """Let TVM cut a loop where a condition begins to hold.

    Raises:
        _NoRule: The program holds indices of 64 bits, for which TVM fails to.
    """
    if any("int64" in str(getattr(parameter.ty, "dtype", "")) for parameter in schedule.mod["main"].params):
        raise _NoRule
    schedule.annotate(loop, WHOLE_VECTORS, 1)


def _extent(schedule: Schedule, loop: LoopRV) -> int:
    return int(schedule.get(loop).extent)
