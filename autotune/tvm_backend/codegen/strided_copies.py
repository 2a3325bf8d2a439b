"""What a GPU copies asynchronously as a vector lies side by side.

TVM makes one `cp.async` of a vector that a pipeline copies to shared memory. It takes the address of the first number
and the size of all, and does not ask how far apart the numbers lie: those of a column come out as the beginning of a
row, and beyond the last row the copy reads what belongs to others. So loops over numbers that lie apart are not
vectorised in such programs. Each number is copied by itself, and asynchronously if it has four bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.ir import Range
from tvm.s_tir import Schedule

from autotune.tvm_backend.types import Loop, LoopRV, PrimExpr, PrimFunc

_ASYNCHRONOUS = "software_pipeline_async_stages"
_ROOT = "root"
_MAIN = "main"


def copy_columns_singly(function: PrimFunc) -> PrimFunc:
    """Return a scheduled program without vectors of numbers that lie apart, where copies may be asynchronous."""
    if _ASYNCHRONOUS not in str(function):
        return function
    schedule = Schedule(tvm.IRModule({_MAIN: function}), debug_mask="none")
    for loop in list(_vectors_apart(schedule)):
        schedule.unroll(loop)
    return schedule.mod[_MAIN]


def _vectors_apart(schedule: Schedule) -> Iterator[LoopRV]:
    """The vectorised loops over numbers that are not known to lie side by side, or to be the same one."""
    for block in schedule.get_child_blocks(schedule.get_sblock(_ROOT)):
        loops = list(schedule.get_loops(block))
        loop = schedule.get(loops[-1]) if loops else None
        if loop is not None and loop.kind == tirx.ForKind.VECTORIZED:
            values = zip(schedule.get(block).iter_vars, loop.body.iter_values, strict=True)
            analyzer = sym.Analyzer()
            for outer in map(schedule.get, loops):
                analyzer.bind(outer.loop_var, Range.from_min_extent(outer.min, outer.extent))
            for item, value in values:
                analyzer.bind(item.var, value)
            if any(_distance(region, loop, analyzer) not in (0, 1) for region in schedule.get(block).reads):
                yield loops[-1]


def _distance(region: Any, loop: Loop, analyzer: Any) -> int | None:
    """How far an element lies from the one that the iteration before reads; None where that varies."""
    flat: PrimExpr = tirx.const(0, "int32")
    for dimension, size in zip(region.region, region.source.shape, strict=True):
        flat = flat * size + dimension.min
    equation = list(sym.detect_linear_equation(analyzer.simplify(flat), [loop.loop_var]))
    return int(equation[0]) if equation and isinstance(equation[0], tirx.IntImm) else None
