"""Dynamic quantisation: the scale and the zero point follow from the range of the values, each time anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import te, tirx

from autotune.tvm_backend.operators.element_types import LEVELS, to_byte
from autotune.tvm_backend.programs import finished
from autotune.tvm_backend.types import PrimExpr, PrimFunc, TensorExpr

_PARALLEL_FROM = 16384  # elements
_PARTS = 16  # that the range of many values is found in


def dynamic_kernel(shape: Sequence[int]) -> PrimFunc:
    """Return the program that quantises floats to their range: the bytes, the scale (1,) and the zero point (1,)."""
    rows, lanes = shape
    data = te.placeholder(shape, "float32", "data")
    large = rows * lanes >= _PARALLEL_FROM
    shares = max(size for size in range(1, _PARTS + 1) if rows % size == 0) if large else 1
    high = _extreme(data, shares, te.max, "high")
    low = _extreme(data, shares, te.min, "low")
    zero = tirx.const(0.0, "float32")

    def step(*_: PrimExpr) -> PrimExpr:
        width = te.max(high[0], zero) - te.min(low[0], zero)
        one = tirx.const(1.0, "float32")
        return tirx.Select(width == zero, one, width / tirx.const(float(LEVELS - 1), "float32"))

    scale = te.compute((1,), step, name="scale")
    last = tirx.const(float(LEVELS - 1), "float32")
    point = te.compute((1,), lambda _: to_byte(-te.min(low[0], zero) / scale[0], zero, zero, last), "point")
    moved = point[0].astype("float32")
    result = te.compute(shape, lambda *position: to_byte(data[position] / scale[0], moved, zero, last), name="result")
    return _scheduled([data, result, scale, point], parallel=large)


def _extreme(data: TensorExpr, shares: int, reduction: Callable[..., PrimExpr], name: str) -> TensorExpr:
    """The largest or smallest element: for each lane of some parts, and of these."""
    rows, lanes = (int(extent) for extent in data.shape)
    size = rows // shares
    row, part, lane = (te.reduce_axis((0, extent)) for extent in (size, shares, lanes))
    by_lane = te.compute(
        (shares, lanes), lambda p, i: reduction(data[p * size + row, i], axis=row), name=f"{name}_by_lane"
    )
    return te.compute((1,), lambda _: reduction(by_lane[part, lane], axis=[part, lane]), name=name)


def _scheduled(arguments: list[TensorExpr], *, parallel: bool) -> PrimFunc:
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func(arguments)}))
    for name in ("high_by_lane", "low_by_lane"):
        block = schedule.get_sblock(name)
        part, lane, row = schedule.get_loops(block)
        schedule.reorder(row, lane)
        if parallel:
            schedule.parallel(part)
        schedule.vectorize(lane)  # before `decompose_reduction`, after which it is no reduction any more
        schedule.decompose_reduction(block, row)
    row, lane = schedule.get_loops(schedule.get_sblock("result"))
    schedule.vectorize(lane)
    if parallel:
        schedule.parallel(row)
    return finished(schedule.mod["main"])
