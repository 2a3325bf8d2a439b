"""Running sums and products along an axis: threads share the columns, and each goes down vectors of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators.activations import argument, body, kernel
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc

_WIDE = 4 * LANES
_PARALLEL_FROM = 4096  # elements; fewer are done before other threads have begun


@dataclass(frozen=True)
class Running:
    """What runs along an axis.

    Attributes:
        shape: That of the data and of the result: what is before the axis, the axis, and what is after it.
        read, written: The element types of both.
        multiplies: Whether elements are multiplied instead of added.
        exclusive: Whether an element of the result does without the element of the data at its place.
    """

    shape: tuple[int, int, int]
    read: str
    written: str
    multiplies: bool
    exclusive: bool


def running_kernel(running: Running) -> PrimFunc:
    """Return the kernel. Its arguments are the data and the result."""
    before, _, columns = running.shape
    with kernel() as made:
        data = argument("data", running.shape, running.read)
        result = argument("result", running.shape, running.written)
        with body():
            begin = 0
            for width in (_WIDE, LANES, columns % LANES):
                chunks = (columns - begin) // width if width else 0
                if chunks:
                    loop = T.parallel if prod(running.shape) >= _PARALLEL_FROM else T.serial
                    with loop(0, before * chunks) as part:
                        _go_down(running, data, result, part // chunks, begin + part % chunks * width, width)
                begin += chunks * width
    return made()


def _go_down(running: Running, data: Buffer, result: Buffer, outer: PrimExpr, first: PrimExpr, width: int) -> None:
    """Run down columns that lie side by side."""
    total = T.alloc_buffer((width,), running.written, scope="local")
    with T.vectorized(0, width) as lane:
        T.buffer_store(total, tirx.const(int(running.multiplies), running.written), [lane])
    with T.serial(0, running.shape[1]) as step, T.vectorized(0, width) as lane:
        place = [outer, step, first + lane]
        if running.exclusive:
            T.buffer_store(result, total[lane], place)
        element = data[outer, step, first + lane].astype(running.written)
        T.buffer_store(total, total[lane] * element if running.multiplies else total[lane] + element, [lane])
        if not running.exclusive:
            T.buffer_store(result, total[lane], place)
