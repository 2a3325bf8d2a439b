"""Softmax and layer normalisation over the last dimension: one parallel pass over the rows, every step vectorised.

They need no search. A row stays in the cache from its first step to its last, and a reduction runs in as many sums as a
vector has lanes, which are added up at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm
from tvm import te

Expr = Any  # a tensor expression, or a TIR one; TVM has no types

_LANES = (16, 8)  # preferred, in this order
_MOST_LANES = 32
_PARALLEL_FROM = 4096  # elements; fewer are done before other threads have begun
# TVM's number for an operator that is fused with no other.
_OPAQUE = 8
_BY_LANES, _ROW = "by_lanes", "row"


def lanes_of(length: int) -> int:
    """Return the lanes of the vectors that a row of this length is made of; 0 where it is not made of whole ones.

    LLVM computes a vector of an odd width, such as 25, on registers of 16 and 8 lanes. That is still several times as
    fast as element by element.
    """
    return next((lanes for lanes in (*_LANES, *range(_MOST_LANES, _LANES[-1], -1)) if length % lanes == 0), 0)


def softmax(shape: tuple[int, ...], lanes: int) -> Any:
    """The scheduled program of a softmax in float32: one input and one output of this shape."""
    data = te.placeholder(shape, name="data")
    largest = _reduced(data, te.max, lanes, "largest")
    grown = te.compute(shape, lambda *at: te.exp(data[at] - largest[at[:-1]]), name="grown")
    total = _reduced(grown, te.sum, lanes, "total")
    factor = te.compute(shape[:-1], lambda *row: 1.0 / total[row], name="factor")
    output = te.compute(shape, lambda *at: grown[at] * factor[at[:-1]], name="output")
    return _scheduled([data, output], lanes)


def layer_norm(shape: tuple[int, ...], lanes: int, epsilon: float) -> Any:
    """The scheduled program of a layer normalisation in float32: data, scale and offset of a row, and the output.

    The variance is computed from the differences to the mean, so that nothing cancels.
    """
    share = 1.0 / shape[-1]
    data = te.placeholder(shape, name="data")
    scale, offset = (te.placeholder(shape[-1:], name=name) for name in ("scale", "offset"))
    total = _reduced(data, te.sum, lanes, "total")
    mean = te.compute(shape[:-1], lambda *row: total[row] * share, name="mean")
    moved = te.compute(shape, lambda *at: data[at] - mean[at[:-1]], name="moved")
    squares = _reduced(moved, te.sum, lanes, "squares", lambda value: value * value)
    factor = te.compute(shape[:-1], lambda *row: 1.0 / te.sqrt(squares[row] * share + epsilon), name="factor")
    output = te.compute(shape, lambda *at: moved[at] * factor[at[:-1]] * scale[at[-1]] + offset[at[-1]], name="output")
    return _scheduled([data, scale, offset, output], lanes)


def _reduced(
    data: Expr, reduce: Callable[..., Expr], lanes: int, name: str, of: Callable[[Expr], Expr] = lambda value: value
) -> Expr:
    """The rows of a tensor reduced: first lane by lane, then over the lanes."""
    *rows, length = data.shape
    chunk, lane = te.reduce_axis((0, length // lanes), "chunk"), te.reduce_axis((0, lanes), "lane")

    def partial(*at: Expr) -> Expr:
        *row, column = at
        return reduce(of(data[(*row, chunk * lanes + column)]), axis=chunk)

    parts = te.compute((*rows, lanes), partial, name=f"{name}_{_BY_LANES}")
    return te.compute(tuple(rows), lambda *row: reduce(parts[(*row, lane)], axis=lane), name=f"{name}_{_ROW}")


def _scheduled(arguments: list[Expr], lanes: int) -> Any:
    """The program of a tensor expression that goes over rows: the last step's rows in parallel, all others within."""
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func(arguments)}))
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    loops = schedule.get_loops(blocks[-1])
    rows = schedule.fuse(*loops[:-1])
    for block in reversed(blocks[:-1]):
        schedule.compute_at(block, rows, preserve_unit_loops=True)
    if prod(int(extent) for extent in arguments[0].shape) >= _PARALLEL_FROM:
        schedule.parallel(rows)
    for block in blocks:
        _vectorize(schedule, block, lanes)
    program = schedule.mod["main"].without_attr("global_symbol")
    return program.with_attr({"op_pattern": _OPAQUE, "tirx.is_scheduled": True})


def _vectorize(schedule: Any, block: Any, lanes: int) -> None:
    name = str(schedule.get(block).name_hint)
    *_, before, inner = schedule.get_loops(block)
    if name.endswith(_BY_LANES):  # the last loop is the reduction, the one before has the lanes
        schedule.reorder(inner, before)
        schedule.vectorize(before)
        schedule.decompose_reduction(block, inner)
    elif name in ("grown", "moved", "output"):
        _, vector = schedule.split(inner, [None, lanes])
        schedule.vectorize(vector)
