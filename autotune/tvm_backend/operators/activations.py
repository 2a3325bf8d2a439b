"""Kernels over rows of activations: norms, gates and embeddings, and the rounding of their results to bytes.

What a product of packed weights reads is float32 with the sum of each block, or bytes with the scale and the sum of
each block: x = byte * scale, and the largest element of a block is 127 or -127 times its scale.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators.few_bit_product import KERNELS, PackedForm, code_at
from autotune.tvm_backend.programs import OPAQUE
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc

_LARGEST = 127.0
_PARALLEL_FROM = 8  # rows
_TINY = 1e-30  # a block of zeros has this scale
Value = Callable[[PrimExpr], PrimExpr]  # the element of a column
INDEX = "int32"


@dataclass(frozen=True)
class Blocked:
    """What a product reads.

    Attributes:
        rows, columns: Its shape.
        block: Elements that share a scale and a sum.
        in_bytes: Whether elements are bytes.
    """

    rows: int
    columns: int
    block: int
    in_bytes: bool

    @property
    def types(self) -> list[tuple[tuple[int, int], str]]:
        """Shapes and element types: elements, where they are bytes the scales, and sums."""
        by_block = ((self.rows, self.columns // self.block), "float32")
        shape = (self.rows, self.columns)
        return [(shape, "int8"), by_block, by_block] if self.in_bytes else [(shape, "float32"), by_block]


@contextmanager
def kernel() -> Iterator[Callable[[], PrimFunc]]:
    """Open a kernel that is scheduled as it is written. What the block gets returns it after its end."""
    builder = IRBuilder()
    with builder, T.prim_func(is_private=True, s_tir=True):
        T.func_attr({"op_pattern": OPAQUE, "tirx.is_scheduled": True, "tirx.noalias": True})
        yield builder.get


@contextmanager
def body() -> Iterator[None]:
    """Open the body of the kernel that is open, after its arguments. TVM's passes look for a block there."""
    with T.sblock("root"):
        T.reads()
        T.writes()
        yield


def argument(name: str, shape: Sequence[int], dtype: str = "float32") -> Buffer:
    """Declare an argument of the kernel that is open."""
    return T.match_buffer(T.arg(name, T.handle()), tuple(shape), dtype)


def vector(lanes: int = LANES, dtype: str = "float32") -> Buffer:
    """Allocate a vector of zeros."""
    buffer = T.alloc_buffer((lanes,), dtype, scope="local")
    with T.vectorized(0, lanes) as lane:
        T.buffer_store(buffer, tirx.const(0, dtype), [lane])
    return buffer


def over_lanes(buffer: Buffer, lanes: int, combine: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> PrimExpr:
    """Combine all lanes of a vector, and return where the result is."""
    half = lanes // 2
    while half:
        with T.vectorized(0, half) as lane:
            T.buffer_store(buffer, combine(buffer[lane], buffer[lane + half]), [lane])
        half //= 2
    return buffer[0]


def each_row(rows: int) -> Any:
    """A loop over rows, by all threads if there are many."""
    return T.parallel(0, rows) if rows >= _PARALLEL_FROM else T.serial(0, rows)


def results(blocked: Blocked) -> list[Buffer]:
    """Declare the results of a kernel as arguments."""
    return [argument(f"out{index}", *kind) for index, kind in enumerate(blocked.types)]


def write_blocks(blocked: Blocked, outs: Sequence[Buffer], row: PrimExpr, value: Value) -> None:
    """Write a row of elements in blocks."""
    block = blocked.block
    with T.serial(0, blocked.columns // block) as number:
        elements = T.alloc_buffer((block,), "float32", scope="local")
        sums = vector()
        largest = vector()
        for part in range(0, block, LANES):
            with T.vectorized(0, LANES) as lane:
                T.buffer_store(elements, value(number * block + part + lane), [part + lane])
            with T.vectorized(0, LANES) as lane:
                one = elements[part + lane]
                if blocked.in_bytes:
                    T.buffer_store(largest, tirx.max(largest[lane], tirx.max(one, 0.0 - one)), [lane])
                else:
                    T.buffer_store(sums, sums[lane] + one, [lane])
                    T.buffer_store(outs[0], one, [row, number * block + part + lane])
        if blocked.in_bytes:
            _write_bytes(blocked, outs, row, number, elements, largest)
        else:
            T.buffer_store(outs[1], over_lanes(sums, LANES, operator.add), [row, number])


def _write_bytes(
    blocked: Blocked, outs: Sequence[Buffer], row: PrimExpr, number: PrimExpr, elements: Buffer, largest: Buffer
) -> None:
    scale = T.alloc_buffer((2,), "float32", scope="local")
    most = tirx.max(over_lanes(largest, LANES, tirx.max), tirx.const(_TINY, "float32"))
    T.buffer_store(scale, most / tirx.const(_LARGEST, "float32"), [0])
    T.buffer_store(scale, tirx.const(1.0, "float32") / scale[0], [1])
    sums = vector(dtype="int32")
    for part in range(0, blocked.block, LANES):
        with T.vectorized(0, LANES) as lane:
            byte = tirx.round(elements[part + lane] * scale[1]).astype("int32")
            T.buffer_store(sums, sums[lane] + byte, [lane])
            T.buffer_store(outs[0], byte.astype("int8"), [row, number * blocked.block + part + lane])
    T.buffer_store(outs[1], scale[0], [row, number])
    T.buffer_store(outs[2], over_lanes(sums, LANES, operator.add).astype("float32") * scale[0], [row, number])


def mean_square_root(width: int, epsilon: float, value: Value) -> PrimExpr:
    """Return one by the root of the mean square of some elements, a multiple of 16."""
    squares = vector()
    with T.serial(0, width // LANES) as part, T.vectorized(0, LANES) as lane:
        one = value(part * LANES + lane)
        T.buffer_store(squares, squares[lane] + one * one, [lane])
    factor = T.alloc_buffer((1,), "float32", scope="local")
    mean = over_lanes(squares, LANES, operator.add) * tirx.const(1 / width, "float32")
    T.buffer_store(factor, tirx.const(1.0, "float32") / tirx.sqrt(mean + tirx.const(epsilon, "float32")), [0])
    return factor[0]


@lru_cache(KERNELS)
def norm_kernel(blocked: Blocked, rows: int, epsilon: float, *, picked: bool = False) -> PrimFunc:
    """Return the kernel of a norm: (rows, columns) and weights (columns,) to what a product reads.

    Args:
        blocked: The result.
        rows: Of the input.
        epsilon: What is added to the mean square.
        picked: Whether the result is that of one row, whose number is the last argument before the results.
    """
    with kernel() as made:
        x = argument("x", (rows, blocked.columns))
        weight = argument("weight", (blocked.columns,))
        last = argument("last", (1,), INDEX) if picked else None
        outs = results(blocked)
        with body(), each_row(blocked.rows) as row:
            source = row if last is None else last[0]
            factor = mean_square_root(blocked.columns, epsilon, lambda column: x[source, column])
            write_blocks(blocked, outs, row, lambda column: x[source, column] * factor * weight[column])
    return made()


@lru_cache(KERNELS)
def add_norm_kernel(rows: int, width: int, epsilon: float) -> PrimFunc:
    """Return the kernel of x + norm(y): (rows, width) twice, weights (width,), and the result."""
    with kernel() as made:
        x, y = (argument(name, (rows, width)) for name in "xy")
        weight = argument("weight", (width,))
        out = argument("out", (rows, width))
        with body(), each_row(rows) as row:
            factor = mean_square_root(width, epsilon, lambda column: y[row, column])
            with T.serial(0, width // LANES) as part, T.vectorized(0, LANES) as lane:
                column = part * LANES + lane
                T.buffer_store(out, x[row, column] + y[row, column] * factor * weight[column], [row, column])
    return made()


@lru_cache(KERNELS)
def blocks_kernel(blocked: Blocked) -> PrimFunc:
    """Return the kernel that makes of floats (rows, columns) what a product reads."""
    with kernel() as made:
        x = argument("x", (blocked.rows, blocked.columns))
        outs = results(blocked)
        with body(), each_row(blocked.rows) as row:
            write_blocks(blocked, outs, row, lambda column: x[row, column])
    return made()


@lru_cache(KERNELS)
def gate_kernel(blocked: Blocked, *, gelu: bool, joined: bool) -> PrimFunc:
    """Return the kernel of a gate times what passes it: to what a product reads.

    Args:
        blocked: The result.
        gelu: Whether the gate is GELU; otherwise SiLU.
        joined: Whether one argument has both, the gate before the rest of its row; otherwise there are two.
    """
    columns = blocked.columns
    with kernel() as made:
        if joined:
            gate = up = argument("gate_up", (blocked.rows, 2 * columns))
        else:
            gate, up = (argument(name, (blocked.rows, columns)) for name in ("gate", "up"))
        outs = results(blocked)
        with body(), each_row(blocked.rows) as row:
            start = columns if joined else 0
            write_blocks(
                blocked, outs, row, lambda column: _gated(gate[row, column], gelu=gelu) * up[row, start + column]
            )
    return made()


def _gated(value: PrimExpr, *, gelu: bool) -> PrimExpr:
    one = tirx.const(1.0, "float32")
    if not gelu:
        return value / (one + tirx.exp(0.0 - value))
    inner = tirx.const(0.7978845608, "float32") * (value + tirx.const(0.044715, "float32") * value * value * value)
    return tirx.const(0.5, "float32") * value * (one + tirx.tanh(inner))


def embedding_kernel(form: PackedForm | None, rows: int, table: tuple[int, int], factor: float) -> PrimFunc:
    """Return the kernel that looks tokens up: ids (rows,), the table, and embeddings (rows, width).

    Args:
        form: How the table is packed; None for float32.
        rows: How many tokens.
        table: The shape of the table.
        factor: What embeddings are multiplied by.
    """
    tokens, width = table
    with kernel() as made:
        ids = argument("ids", (rows,), INDEX)
        arrays = [argument("table", table)] if form is None else _packed_arguments(form, tokens, width)
        out = argument("out", (rows, width))
        with body(), each_row(rows) as row, T.serial(0, width) as column:
            value = arrays[0][ids[row], column] if form is None else _element(form, arrays, ids[row], column)
            T.buffer_store(out, value * tirx.const(factor, "float32"), [row, column])
    return made()


def _packed_arguments(form: PackedForm, rows: int, columns: int) -> list[Buffer]:
    chunks = rows // LANES
    blocks = columns // form.block
    elements = argument("elements", (chunks, blocks, form.groups, LANES, form.word), "uint8")
    names = ("scale",) if form.zero is not None else ("scale", "offset")
    return [elements, *(argument(name, (chunks, blocks, LANES), form.scales) for name in names)]


def _element(form: PackedForm, arrays: Sequence[Buffer], row: PrimExpr, column: PrimExpr) -> PrimExpr:
    elements, scale, *offset = arrays
    chunk = row // LANES
    lane = row % LANES
    block = column // form.block
    code = code_at(form, elements, chunk, lane, column).astype("float32")
    factor = scale[chunk, block, lane].astype("float32")
    if offset:
        return code * factor + offset[0][chunk, block, lane].astype("float32")
    return (code - tirx.const(float(form.zero or 0), "float32")) * factor
