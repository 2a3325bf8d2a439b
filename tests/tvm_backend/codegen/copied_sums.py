"""Sums some numbers of which are copied to shared memory while those before are added, for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, te

X = te.placeholder((8, 64, 64), name="x")
PLANE = te.reduce_axis((0, 8), "i")
TERM = te.reduce_axis((0, 64), "k")
# Of columns, of rows, or of columns in several planes. The vectors of planes are found only by somebody who knows the
# range of each loop.
SUMS: dict[str, Callable[[Any], Any]] = {
    "columns": lambda j: te.sum(X[0, TERM, j], TERM),
    "rows": lambda j: te.sum(X[0, j, TERM], TERM),
    "planes": lambda j: te.sum(X[PLANE, TERM, j], [TERM, PLANE]),
}


def program(name: str) -> tvm.IRModule:
    """The program of a sum."""
    function = te.create_prim_func([X, te.compute((64,), SUMS[name], name="y")])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def scheduled(name: str) -> tvm.IRModule:
    """The program with its pipeline."""
    schedule = s_tir.Schedule(program(name))
    block = schedule.get_sblock("y")
    column, term, *planes = schedule.get_loops(block)
    blocks, thread = schedule.split(column, [None, 1])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    step, _ = schedule.split(term, [None, 8 if planes else 4])
    copied = schedule.cache_read(block, 0, "shared")
    schedule.compute_at(copied, step)
    numbers = schedule.fuse(*schedule.get_loops(copied)[3:])
    schedule.vectorize(schedule.split(numbers, [None, 4])[1])
    schedule.annotate(step, "software_pipeline_stage", [0, 1])
    schedule.annotate(step, "software_pipeline_order", [0, 1])
    schedule.annotate(step, "software_pipeline_async_stages", [0])
    schedule.decompose_reduction(block, step)
    return schedule.mod
