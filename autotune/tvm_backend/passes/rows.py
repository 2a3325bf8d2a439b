"""Softmax and layer normalisation over the last dimension: one parallel pass over the rows, every step vectorised.

They need no search. A row stays in the cache from its first step to its last, and a reduction runs in as many sums as a
vector has lanes. At its end the vector is halved and its halves are added, until one sum is left.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import tvm
from tvm import relax, te

from autotune.tvm_backend.kernels.not_a_number import LARGEST
from autotune.tvm_backend.passes.rewrite import (
    PlainRewriter,
    finished,
    float_dtype,
    is_tensor_constant,
    op_name,
    rewrite_and_clean,
    static_shape,
)
from autotune.tvm_backend.types import BlockRV, Call, Expr, IRModule, PrimExpr, PrimFunc, Schedule, TensorExpr, Var

_LANES = (16, 8)  # preferred, in this order
_MOST_LANES = 32
_PARALLEL_FROM = 4096  # elements; fewer are done before other threads have begun
_BY_LANES = "by_lanes"
_HALVED = "halved"
_ROW = "row"
Convert = Callable[[PrimExpr], PrimExpr]


def replace_row_operators(mod: IRModule) -> IRModule:
    """Rewrite `main` so that softmax and layer normalisation over the last dimension are scheduled programs.

    Layer normalisation is recognised as an operator, and as exporters write it in terms of others.

    Args:
        mod: A module before LegalizeOps, for a CPU.
    """
    return rewrite_and_clean(mod, _Replacer)


def name_layer_norms(mod: IRModule) -> IRModule:
    """Rewrite `main` so that layer normalisation is one operator, also where exporters write it in terms of others.

    Args:
        mod: A module before LegalizeOps, for a CPU.
    """
    return rewrite_and_clean(mod, _Namer)


class _Namer(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        normalised = _Written(self.values).match(value)
        if normalised is None or not _is_of_rows(value, normalised):
            return None
        data, scale, offset, epsilon = normalised
        return relax.op.nn.layer_norm(self.leaf(data), scale, offset, axes=[-1], epsilon=epsilon)


class _Replacer(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        return self._softmax(value) if op_name(value) == "relax.nn.softmax" else self._layer_norm(value)

    def _softmax(self, call: Call) -> Expr | None:
        shape = _rows(call)
        if shape is None or int(call.attrs.axis) not in (-1, len(shape) - 1):
            return None
        return self._call(softmax(shape, lanes_of(shape[-1])), "softmax_rows", call, [call.args[0]])

    def _layer_norm(self, value: Expr) -> Expr | None:
        normalised = (
            normalised_rows(value) if op_name(value) == "relax.nn.layer_norm" else _Written(self.values).match(value)
        )
        if normalised is None or not _is_of_rows(value, normalised):
            return None
        data, scale, offset, epsilon = normalised
        shape = static_shape(value)
        program = layer_norm(shape, lanes_of(shape[-1]), epsilon)
        return self._call(program, "layer_norm_rows", value, [data, scale, offset])

    def _call(self, program: PrimFunc, name: str, value: Expr, operands: list[Expr]) -> Expr:
        function = self.builder.add_func(program, name)
        return relax.call_tir(function, [self.leaf(item) for item in operands], out_ty=value.ty)


def _rows(value: Expr) -> tuple[int, ...] | None:
    """The shape of a float32 tensor of rows that are made of whole vectors."""
    shape = static_shape(value)
    return shape if len(shape) > 1 and float_dtype(value) == "float32" and lanes_of(shape[-1]) else None


Norm = tuple[Expr, Expr, Expr, float]  # data, scale, offset and the small number below the root


def _is_of_rows(value: Expr, normalised: Norm) -> bool:
    """Whether a layer normalisation is of rows of whole vectors, with a scale and an offset for each column."""
    data, scale, offset, _ = normalised
    shape = _rows(value)
    return shape is not None and [static_shape(item) for item in (data, scale, offset)] == [shape, *[shape[-1:]] * 2]


def normalised_rows(call: Call) -> Norm | None:
    """Return what a layer normalisation over the last dimension normalises; None for one over others."""
    axes = [int(axis) for axis in call.attrs.axes]
    rank = len(static_shape(call))
    if axes not in ([-1], [rank - 1]) or not (call.attrs.center and call.attrs.scale):
        return None
    return (*call.args, float(call.attrs.epsilon))


class _Written:
    """Recognises (x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon) * scale + offset."""

    def __init__(self, values: dict[Var, Expr]) -> None:
        self._values = values

    def match(self, value: Expr) -> Norm | None:
        """What is normalised, if a value is the last step of such a formula; scale and offset are constants."""
        product, offset = self._with_constant(value, "relax.add")
        normal, scale = self._with_constant(product, "relax.multiply")
        if op_name(normal) != "relax.divide":
            return None
        moved, root = normal.args
        deviation, epsilon = self._with_constant(self._operand(root, "relax.sqrt"), "relax.add")
        square = self._mean(deviation)
        difference: Expr = self._values.get(moved)
        if epsilon is None or square is None or not self._squared(square, moved):
            return None
        if op_name(difference) != "relax.subtract":
            return None
        data, mean = difference.args
        averaged = self._mean(self._values.get(mean))
        if averaged is None or not averaged.same_as(data) or epsilon.value.numpy().size != 1:
            return None
        return data, scale, offset, float(epsilon.value.numpy().item())

    def _with_constant(self, value: Expr, name: str) -> tuple[Expr, Expr]:
        """The value of the one operand of a binary operator and the constant that is the other; else None twice."""
        if op_name(value) == name:
            for operand, constant in (value.args, reversed(value.args)):
                if is_tensor_constant(constant) and isinstance(operand, relax.Var):
                    return self._values.get(operand), constant
        return None, None

    def _operand(self, var: Var, name: str) -> Expr:
        """The value of the operand of a unary operator whose result a variable is; else None."""
        value: Expr = self._values.get(var) if isinstance(var, relax.Var) else None
        return self._values.get(value.args[0]) if op_name(value) == name else None

    def _mean(self, value: Expr) -> Expr | None:
        """What a value is the mean of over the last dimension, which it keeps."""
        if op_name(value) != "relax.mean" or not value.attrs.keepdims or value.attrs.axis is None:
            return None
        axes = [int(axis) for axis in value.attrs.axis]
        rank = len(static_shape(value.args[0]))
        return value.args[0] if axes in ([-1], [rank - 1]) else None

    def _squared(self, square: Expr, moved: Expr) -> bool:
        value: Expr = self._values.get(square)
        if op_name(value) == "relax.multiply":
            return bool(value.args[0].same_as(moved) and value.args[1].same_as(moved))
        if op_name(value) != "relax.power" or not value.args[0].same_as(moved):
            return op_name(value) == "relax.square" and bool(value.args[0].same_as(moved))
        exponent = value.args[1]
        return is_tensor_constant(exponent) and bool((exponent.value.numpy() == 2.0).all())


def lanes_of(length: int) -> int:
    """Return the lanes of the vectors that a row of this length is made of; 0 where it is not made of whole ones.

    LLVM computes a vector of an odd width, such as 25, on registers of 16 and 8 lanes. That is still several times as
    fast as element by element.
    """
    return next((lanes for lanes in (*_LANES, *range(_MOST_LANES, _LANES[-1], -1)) if length % lanes == 0), 0)


def softmax(shape: tuple[int, ...], lanes: int) -> PrimFunc:
    """The scheduled program of a softmax in float32: one input and one output of this shape."""
    data = te.placeholder(shape, name="data")
    largest = _reduced(data, te.max, lanes, LARGEST)
    grown = te.compute(shape, lambda *index: te.exp(data[index] - largest[index[:-1]]), name="grown")
    total = _reduced(grown, te.sum, lanes, "total")
    factor = te.compute(shape[:-1], lambda *row: 1.0 / total[row], name="factor")
    output = te.compute(shape, lambda *index: grown[index] * factor[index[:-1]], name="output")
    return _scheduled([data, output], lanes)


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
        dtype: Of the data.
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


def _scheduled(arguments: list[TensorExpr], lanes: int) -> PrimFunc:
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
    elif name in ("read", "grown", "moved", "output"):
        _, vector = schedule.split(inner, [None, lanes])
        schedule.vectorize(vector)
