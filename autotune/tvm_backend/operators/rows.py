"""Softmax and layer normalisation over the last dimension: one parallel pass over the rows, every step vectorised.

They need no search. A row stays in the cache from its first step to its last, and a reduction runs in as many sums as a
vector has lanes. At its end the vector is halved and its halves are added, until one sum is left. A softmax over
another dimension is one over the columns of matrices, of which a vector has as many as it has lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import tvm
from tvm import te

from autotune.tvm_backend.programs import finished
from autotune.tvm_backend.types import BlockRV, PrimExpr, PrimFunc, Schedule, TensorExpr

LARGEST = "largest"  # how the names of tensors with the largest value of a softmax begin; TVM's own have the next
_LANES = (16, 8)  # preferred, in this order
_MAX_LANES = 32
_PARALLEL_FROM = 4096  # elements; fewer are done before other threads have begun
_BY_LANES = "by_lanes"
_HALVED = "halved"
_ROW = "row"
Convert = Callable[[PrimExpr], PrimExpr]


def lanes_of(length: int) -> int:
    """Return the lanes of the vectors that a row of this length is made of; 0 where it is not made of whole ones.

    LLVM computes a vector of an odd width, such as 25, on registers of 16 and 8 lanes. That is still several times as
    fast as element by element.
    """
    return next((lanes for lanes in (*_LANES, *range(_MAX_LANES, _LANES[-1], -1)) if length % lanes == 0), 0)


def softmax(shape: tuple[int, ...], lanes: int, *, write: Convert = lambda element: element) -> PrimFunc:
    """The scheduled program of a softmax in float32: one input and one output of this shape.

    Args:
        shape: That of both.
        lanes: What `lanes_of` returns for the last extent.
        write: Makes an element of the output of a float32.
    """
    data = te.placeholder(shape, name="data")
    largest = _reduced(data, te.max, lanes, LARGEST)
    grown = te.compute(shape, lambda *index: te.exp(data[index] - largest[index[:-1]]), name="grown")
    total = _reduced(grown, te.sum, lanes, "total")
    factor = te.compute(shape[:-1], lambda *row: 1.0 / total[row], name="factor")
    output = te.compute(shape, lambda *index: write(grown[index] * factor[index[:-1]]), name="output")
    return _scheduled([data, output], lanes)


def column_softmax(shape: tuple[int, int, int], lanes: int, *, write: Convert = lambda element: element) -> PrimFunc:
    """The scheduled program of a softmax over the columns of matrices in float32: one input and one output.

    Args:
        shape: That of both: matrices, rows, columns.
        lanes: What `lanes_of` returns for the columns.
        write: Makes an element of the output of a float32.
    """
    matrices, length, columns = shape
    data = te.placeholder(shape, name="data")
    row = te.reduce_axis((0, length), "row")
    largest = te.compute(
        (matrices, columns), lambda m, c: te.max(data[m, row, c], axis=row), name=f"{LARGEST}_{_BY_LANES}"
    )
    grown = te.compute(shape, lambda m, r, c: te.exp(data[m, r, c] - largest[m, c]), name="grown")
    every = te.reduce_axis((0, length), "every")
    total = te.compute(
        (matrices, columns), lambda m, c: te.sum(grown[m, every, c], axis=every), name=f"total_{_BY_LANES}"
    )
    factor = te.compute((matrices, columns), lambda m, c: 1.0 / total[m, c], name="factors")
    output = te.compute(shape, lambda m, r, c: write(grown[m, r, c] * factor[m, c]), name="output")
    return _scheduled([data, output], lanes, by_column=True)


def layer_norm(
    shape: tuple[int, ...],
    lanes: int,
    epsilon: float,
    *,
    dtype: str = "float32",
    read: Convert = lambda element: element,
    write: Convert = lambda element: element,
) -> PrimFunc:
    """The scheduled program of a layer normalisation in float32: data, scale and offset of a row, and the output.

    The variance is computed from the differences to the mean, so that nothing cancels.

    Args:
        shape: That of the data, and of the output.
        lanes: What `lanes_of` returns for the last extent.
        epsilon: The small number below the root.
        read: Makes a float32 of an element of the data.
        write: Makes an element of the output of a float32.
    """
    share = 1.0 / shape[-1]
    kept = te.placeholder(shape, dtype, name="data")
    data = kept if dtype == "float32" else te.compute(shape, lambda *index: read(kept[index]), name="read")
    scale, offset = (te.placeholder(shape[-1:], name=name) for name in ("scale", "offset"))
    total = _reduced(data, te.sum, lanes, "total")
    mean = te.compute(shape[:-1], lambda *row: total[row] * share, name="mean")
    moved = te.compute(shape, lambda *index: data[index] - mean[index[:-1]], name="moved")
    squares = _reduced(moved, te.sum, lanes, "squares", lambda value: value * value)
    factor = te.compute(shape[:-1], lambda *row: 1.0 / te.sqrt(squares[row] * share + epsilon), name="factor")
    output = te.compute(
        shape,
        lambda *index: write(moved[index] * factor[index[:-1]] * scale[index[-1]] + offset[index[-1]]),
        name="output",
    )
    return _scheduled([kept, scale, offset, output], lanes)


def _reduced(
    data: TensorExpr,
    reduce: Callable[..., TensorExpr],
    lanes: int,
    name: str,
    of: Callable[[TensorExpr], TensorExpr] = lambda value: value,
) -> TensorExpr:
    """The rows of a tensor reduced: first lane by lane, then the lanes by halves, then what is left, one by one."""
    *rows, length = data.shape
    chunk = te.reduce_axis((0, length // lanes), "chunk")

    def partial(*indices: TensorExpr) -> TensorExpr:
        *row, column = indices
        return reduce(of(data[(*row, chunk * lanes + column)]), axis=chunk)

    left = te.compute((*rows, lanes), partial, name=f"{name}_{_BY_LANES}")
    while lanes % 2 == 0:
        lanes //= 2
        left = _halved(left, reduce, lanes, f"{name}_{_HALVED}")
    lane = te.reduce_axis((0, lanes), "lane")
    return te.compute(tuple(rows), lambda *row: reduce(left[(*row, lane)], axis=lane), name=f"{name}_{_ROW}")


def _halved(vectors: TensorExpr, reduce: Callable[..., TensorExpr], lanes: int, name: str) -> TensorExpr:
    """Vectors of twice as many lanes, of which the second half is added to the first, or whatever a reduction does."""

    def joined(*indices: TensorExpr) -> TensorExpr:
        *row, column = indices
        return reduce(vectors[(*row, column)], vectors[(*row, column + lanes)])

    return te.compute((*vectors.shape[:-1], lanes), joined, name=name)


def _scheduled(arguments: list[TensorExpr], lanes: int, by_column: bool = False) -> PrimFunc:
    """The program of a tensor expression that goes over rows: the last step's rows in parallel, all others within.

    Args:
        arguments: The inputs and the output of the expression.
        lanes: Of the vectors.
        by_column: Whether it goes over vectors of columns in place of rows.
    """
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func(arguments)}))
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    *outer, inner = schedule.get_loops(blocks[-1])
    if by_column:
        along = outer.pop()
        vectors, inner = schedule.split(inner, [None, lanes])
        outer.append(vectors)
        schedule.reorder(*outer, along, inner)
    rows = schedule.fuse(*outer)
    for block in reversed(blocks[:-1]):
        schedule.compute_at(block, rows, preserve_unit_loops=True)
    if prod(int(extent) for extent in arguments[0].shape) >= _PARALLEL_FROM:
        schedule.parallel(rows)
    for block in blocks:
        _vectorize(schedule, block, lanes)
    return finished(schedule.mod["main"])


def _vectorize(schedule: Schedule, block: BlockRV, lanes: int) -> None:
    name = str(schedule.get(block).name_hint)
    *_, before, inner = schedule.get_loops(block)
    if name.endswith(_BY_LANES):  # the last loop is the reduction, the one before has the lanes
        schedule.reorder(inner, before)
        schedule.vectorize(before)
        schedule.decompose_reduction(block, inner)
    elif _HALVED in name:
        schedule.vectorize(inner)
    elif name in ("read", "grown", "moved", "factors", "output"):
        _, vector = schedule.split(inner, [None, lanes])
        schedule.vectorize(vector)
