"""Let a scheduled product of bytes look its results up in a table, in place of a kernel that does so afterwards.

An iteration of the product's parallel loop looks up what it has written, which is still in its core's cache: no other
core has to be waited for, and none fetches the bytes of another. The schedule of the product stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.tirx import ForKind, IntImm

from autotune.tvm_backend.codegen.index_values import Index
from autotune.tvm_backend.intrinsics.amx_and_vector_tiles import OUT
from autotune.tvm_backend.isa.values import LANES, ByteTable
from autotune.tvm_backend.isa.vectors import VECTORS
from autotune.tvm_backend.operators.element_types import BYTES, LEVELS
from autotune.tvm_backend.types import Buffer, Loop, PrimExpr, PrimFunc, Stmt

_TOGETHER = 4  # rows of lanes that are looked up as one vector
_VECTOR = _TOGETHER * LANES
_Values = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Part:
    """What an iteration of a parallel loop writes of an image (N, H, W, C, 16)."""

    loop: Loop
    begins: tuple[PrimExpr, ...]  # where the part begins along each axis but the lanes, in terms of the loop's variable
    extents: tuple[int, ...]  # how much of each of these axes it has


def with_table(product: PrimFunc, instructions: ByteTable) -> PrimFunc | None:
    """Return a scheduled product of bytes that looks its results up; None if its iterations share rows of lanes.

    Args:
        product: The program, whose last parameter is its result.

    Returns:
        The program, with the table (256,) as a parameter before the result.
    """
    result = product.params[-1]
    part = _part(product, result)
    if part is None:
        return None
    table = tirx.decl_buffer((LEVELS,), BYTES.dtype, "table")
    body = tirx.SeqStmt([part.loop.body, _looked_up(part, table, result, instructions)])
    loop = part.loop
    other = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)
    whole = tvm_ffi.structural_map(
        product.body, ((tirx.For, lambda item: other if item.loop_var.same_as(loop.loop_var) else item),)
    )
    return tirx.PrimFunc([*product.params[:-1], table, result], whole, product.ret_type, product.attrs)


def _part(product: PrimFunc, result: Buffer) -> _Part | None:
    """What an iteration of the parallel loop around the block that writes a result writes; None if that is no box."""
    schedule = Schedule(tvm.IRModule({"main": product}), debug_mask="none", error_render_level="none")
    try:
        loops = [schedule.get(loop) for loop in schedule.get_loops(schedule.get_sblock(OUT))]
    except ScheduleError:
        return None
    if not loops or loops[0].kind != ForKind.PARALLEL or not isinstance(loops[-1].body, SBlockRealize):
        return None
    realize = loops[-1].body
    *places, lane = realize.iter_values
    indices = [Index.read(place, {}) for place in places]
    whole = isinstance(realize.predicate, IntImm) and lane.same_as(loops[-1].loop_var)
    if not whole or int(loops[-1].extent) != LANES or None in indices:
        return None
    return _box(loops[:-1], [index for index in indices if index is not None], result)


def _box(loops: Sequence[Loop], indices: Sequence[Index], result: Buffer) -> _Part | None:
    """The part of a result if each iteration of the outermost loop writes all of a box, and no other writes in it."""
    outer, *inner = loops
    axes = np.meshgrid(*(np.arange(int(loop.extent)) for loop in loops), indexing="ij", sparse=True)
    values = dict(zip([loop.loop_var for loop in loops], axes, strict=True))
    places = [_rows(index, values, loops) for index in indices]
    begins = [index.at_zero([loop.loop_var for loop in inner]) for index in indices]
    extents = [place.max(axis=1) - place.min(axis=1) + 1 for place in places]
    shape = [int(size) for size in result.ty.shape][:-1]
    flat = np.ravel_multi_index(places, shape)
    if np.unique(flat).size != flat.size or flat.size != prod(shape):
        return None
    for place, begin, extent in zip(places, begins, extents, strict=True):
        least = np.broadcast_to(Index(begin).value({outer.loop_var: np.arange(len(place))}), len(place))
        if np.any(extent != extent[0]) or np.any(place.min(axis=1) != least):
            return None
    sizes = tuple(int(extent[0]) for extent in extents)
    return _Part(outer, tuple(begins), sizes) if prod(sizes) == flat.shape[1] else None


def _rows(index: Index, values: Mapping[PrimExpr, Any], loops: Sequence[Loop]) -> _Values:
    """The values of an index, with a row for each iteration of the outermost loop."""
    value = np.broadcast_to(index.value(values), [int(loop.extent) for loop in loops])
    return value.reshape(int(loops[0].extent), -1)


def _looked_up(part: _Part, table: Buffer, result: Buffer, instructions: ByteTable) -> Stmt:
    """Look up what an iteration has written: line by line, four rows of lanes at a time."""
    batch, height, width, chunks = part.extents
    kind = str(part.loop.loop_var.ty.dtype)
    line, group = (tirx.Var(name, kind) for name in ("line", "group"))
    above = [line // _number(height, kind), line % _number(height, kind)]

    def place(row: PrimExpr) -> list[PrimExpr]:
        own = [*above, row // _number(chunks, kind), row % _number(chunks, kind)]
        return [begin + offset for begin, offset in zip(part.begins, own, strict=True)]

    groups, left = divmod(width * chunks, _TOGETHER)
    rows = [place(group * _number(_TOGETHER, kind) + _number(row, kind)) for row in range(_TOGETHER)]
    last = [place(_number(groups * _TOGETHER + row, kind)) for row in range(left)]
    vector = tirx.decl_buffer((_VECTOR,), BYTES.dtype, "vector", scope="local")
    steps = [_loop(group, groups, _step(rows, table, result, vector, instructions))] if groups else []
    steps += [_step(last, table, result, vector, instructions)] if left else []
    body = _loop(line, batch * height, steps[0] if len(steps) == 1 else tirx.SeqStmt(steps))
    regions = [tirx.BufferRegion(item, [Range(0, size) for size in item.ty.shape]) for item in (result, table)]
    block = SBlock([], regions, regions[:1], "looked_up", body, alloc_buffers=[vector])
    return SBlockRealize([], IntImm("bool", 1), block)


def _step(
    rows: Sequence[list[PrimExpr]], table: Buffer, result: Buffer, vector: Buffer, instructions: ByteTable
) -> Stmt:
    """Look up as many rows of lanes as a vector has, or fewer."""
    filled = [*rows, *[rows[-1]] * (_TOGETHER - len(rows))]
    bytes = VECTORS.joined([result[(*row, _lanes(0))] for row in filled], _VECTOR)
    signed = f"int8x{_VECTOR}"
    quarters = [
        tirx.reinterpret(signed, table[tirx.Ramp(_number(first, "int32"), _number(1, "int32"), _VECTOR)])
        for first in range(0, LEVELS, _VECTOR)
    ]
    chosen = instructions.look_up(VECTORS, quarters, tirx.reinterpret(signed, bytes))
    looked_up = tirx.reinterpret(f"{BYTES.dtype}x{_VECTOR}", chosen)
    kept = tirx.BufferStore(vector, looked_up, [tirx.Ramp(_number(0, "int32"), _number(1, "int32"), _VECTOR)])
    stores = [
        tirx.BufferStore(result, vector[_lanes(number * LANES)], [*row, _lanes(0)]) for number, row in enumerate(rows)
    ]
    return tirx.SeqStmt([kept, *stores])


def _lanes(first: int) -> PrimExpr:
    return tirx.Ramp(_number(first, "int32"), _number(1, "int32"), LANES)


def _loop(variable: PrimExpr, extent: int, body: Stmt) -> Loop:
    kind = str(variable.ty.dtype)
    return tirx.For(variable, _number(0, kind), _number(extent, kind), ForKind.SERIAL, body)


def _number(value: int, kind: str) -> PrimExpr:
    return IntImm(kind, value)
