"""Over how many iterations of a vector loop tensors lie side by side.

Of a tensor that a block reads in several places, the first of them counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
import numpy.typing as npt
from tvm import tirx

from autotune.tvm_backend.codegen.index_values import Index, block_in
from autotune.tvm_backend.types import BlockRV, LoopRV, PrimExpr, Schedule

_Places = npt.NDArray[np.int64]


def run_of(schedule: Schedule, block: BlockRV, loop: LoopRV) -> int:
    """Return over how many iterations of a vector loop each tensor lies side by side, or is one element.

    Where the loops around it begin and where they end is looked at. A divisor of the loop's extent; 0 if there is none
    but 1, or if where a tensor lies depends on data or on sizes that are not known.
    """
    extent = int(schedule.get(loop).extent)
    given = list(_places(schedule, block, loop))
    places = [place for place in given if place is not None]
    if len(places) < len(given):
        return 0
    widths = [width for width in range(extent, 1, -1) if extent % width == 0]
    return next((width for width in widths if all(_is_made_of_runs(place, width) for place in places)), 0)


def _is_made_of_runs(places: _Places, width: int) -> bool:
    steps = np.diff(places.reshape(-1, width), axis=1)
    return bool(((steps == 1).all(axis=1) | (steps == 0).all(axis=1)).all())


def _places(schedule: Schedule, block: BlockRV, vector: LoopRV) -> Iterator[_Places | None]:
    """Yield the elements of each tensor that a block touches in a vector loop; None where that is not known."""
    loops = [schedule.get(loop) for loop in schedule.get_loops(block)]
    inner = schedule.get(vector)
    realize = block_in(inner)
    tensors = (*realize.block.reads, *realize.block.writes) if hasattr(realize, "block") else ()
    sizes_of_all = [*(loop.extent for loop in loops), *(size for item in tensors for size in item.source.shape)]
    if not tensors or not all(isinstance(size, tirx.IntImm) for size in sizes_of_all):
        yield None
        return
    for last in (False, True):
        variables = {loop.loop_var: np.array(int(loop.extent) - 1 if last else 0) for loop in loops}
        variables[inner.loop_var] = np.arange(int(inner.extent))
        values = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        bound = {item.var: _evaluated(value, variables) for item, value in values}
        for access in tensors:
            sizes = [int(size) for size in access.source.shape]
            terms = [_evaluated(item.min, bound) for item in access.region]
            offsets = [term * prod(sizes[axis + 1 :]) for axis, term in enumerate(terms) if term is not None]
            complete = len(offsets) == len(terms)
            yield np.broadcast_to(sum(offsets), (int(inner.extent),)) if complete else None


def _evaluated(expr: PrimExpr, values: Mapping[PrimExpr, _Places | None]) -> _Places | None:
    """Return what an index is for all values of a variable; None if it depends on data."""
    index = Index.read(expr, {})
    given = {variable: value for variable, value in values.items() if value is not None}
    try:
        return None if index is None else np.asarray(index.value(given))
    except KeyError:  # a variable whose values are not known
        return None
