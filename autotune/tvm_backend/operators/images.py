"""Programs that move or pool the pixels of images in chunks of channels, whatever the type of their elements.

An image has shape (N, H, W, C / b, b): the channels of a pixel lie together, in chunks of b = 16, or of 4 for an input
with few channels. The last chunk may have padding lanes, on which no result depends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod

import tvm
from tvm import te, tirx

from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.operators.element_types import PackedElement
from autotune.tvm_backend.programs import finished
from autotune.tvm_backend.types import BlockRV, LoopRV, PrimExpr, PrimFunc, Schedule, TensorExpr

_PARALLEL_FROM = 16384  # elements; fewer are done before other threads have begun
_RESULT = "result"
_POOLED = "pooled"
Shape = Sequence[int]
# The element of a result at an index.
Element = Callable[..., PrimExpr]
# From placeholders for further operands of a kernel, and what it has reduced or copied, to an element of its result.
Finish = Callable[..., PrimExpr]


def image(shape: Shape, dtype: str, name: str = "data") -> TensorExpr:
    """A placeholder for an image."""
    return te.placeholder(tuple(shape), dtype, name)


def pack_program(shape: Shape, lanes: int, finish: Finish, operands: Sequence[TensorExpr] = ()) -> PrimFunc:
    """The program that makes an image in chunks of floats (N, C, H, W).

    Args:
        lanes: Channels of a chunk.
        finish: Makes an element of a float and the number of its channel. Padding lanes have numbers from C on, and the
            last channel's floats.
        operands: What it reads beside them.
    """
    batch, channels, height, width = shape
    data = image(shape, "float32")

    def element(n: PrimExpr, y: PrimExpr, x: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        channel = chunk * lanes + lane
        return finish(data[n, tirx.min(channel, channels - 1), y, x], channel)

    return scheduled([data, *operands, computed((batch, height, width, -(-channels // lanes), lanes), element)])


def slice_program(shape: Shape, first: int, count: int, dtype: str) -> PrimFunc:
    """The program that copies so many chunks of channels of an image, from one on."""
    data = image(shape, dtype)
    result = computed((*shape[:3], count, shape[4]), lambda n, y, x, chunk, lane: data[n, y, x, chunk + first, lane])
    return scheduled([data, result])


def enlarge_program(shape: Shape, factors: tuple[int, int], dtype: str) -> PrimFunc:
    """The program that repeats each pixel of an image so many times down and right."""
    batch, height, width, chunks, lanes = shape
    data = image(shape, dtype)
    down, right = factors
    result = computed(
        (batch, height * down, width * right, chunks, lanes),
        lambda n, y, x, *rest: data[(n, y // down, x // right, *rest)],
    )
    return scheduled([data, result])


def concat_program(
    shapes: Sequence[Shape], dtype: str, operands: Sequence[TensorExpr] = (), finish: Finish | None = None
) -> PrimFunc:
    """The program that puts the channels of images together.

    Args:
        dtype: Of their elements.
        operands: What it reads beside them.
        finish: Makes an element of the result of the number of an image and its element; None to copy it.
    """
    images = [image(shape, dtype, f"image{index}") for index, shape in enumerate(shapes)]
    firsts = list(accumulate((shape[3] for shape in shapes), initial=0))

    def taken(index: int, n: PrimExpr, y: PrimExpr, x: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        element = images[index][n, y, x, chunk - firsts[index], lane]
        return element if finish is None else finish(index, element)

    def element(*position: PrimExpr) -> PrimExpr:
        value = taken(len(shapes) - 1, *position)
        for index in reversed(range(len(shapes) - 1)):
            value = tirx.if_then_else(position[3] < firsts[index + 1], taken(index, *position), value)
        return value

    return scheduled([*images, *operands, computed((*shapes[0][:3], firsts[-1], LANES), element)])


def max_pool_program(element: PackedElement, shape: Shape, kernel: tuple[int, int], window: Window) -> PrimFunc:
    """The program of a maximum pooling without dilation."""
    data = image(shape, element.dtype)
    height, width = shape[1:3]
    top, left, *_ = window.padding

    def number(n: PrimExpr, row: PrimExpr, column: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        # The pixel at the border is in the window too, so that reading it once more changes no largest element. Without
        # padding, too, a window may reach over the end: where the number of windows is rounded up.
        inside = (te.max(te.min(row - top, height - 1), 0), te.max(te.min(column - left, width - 1), 0))
        value = data[(n, *inside, chunk, lane)]
        return value if element.is_ordered else element.read(value)

    largest = _pooled(shape, kernel, window, te.max, number)

    def result(*position: PrimExpr) -> PrimExpr:
        return largest[position] if element.is_ordered else element.write(largest[position])

    return scheduled([data, computed(largest.shape, result)], _POOLED)


def average_program(
    element: PackedElement,
    shape: Shape,
    kernel: tuple[int, int],
    window: Window,
    *,
    total: str,
    finish: Finish,
    operands: Sequence[TensorExpr] = (),
) -> PrimFunc:
    """The program of an average pooling without padding.

    Args:
        element: The type of its elements.
        shape: That of the image.
        kernel: The size of a window.
        window: The geometry.
        total: The type of sums.
        finish: Makes an element of the result of a sum.
        operands: What it reads beside the image.
    """
    data = image(shape, element.dtype)

    def number(*position: PrimExpr) -> PrimExpr:
        return data[position].astype(total) if element.is_ordered else element.read(data[position])

    sums = _pooled(shape, kernel, window, te.sum, number)
    result = computed(sums.shape, lambda *position: finish(sums[position]))
    return scheduled([data, *operands, result], _POOLED)


def _pooled(
    shape: Shape, kernel: tuple[int, int], window: Window, reduce: Callable[..., TensorExpr], number: Element
) -> TensorExpr:
    """What a reduction makes of the numbers in each window."""
    down, right = axes = [te.reduce_axis((0, size)) for size in kernel]

    def reduced(n: PrimExpr, y: PrimExpr, x: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        return reduce(number(n, *window.at(y, x, down, right), chunk, lane), axis=axes)

    return te.compute((shape[0], *window.size, *shape[3:]), reduced, name=_POOLED)


def computed(shape: Shape, element: Element) -> TensorExpr:
    """The result of a program that `scheduled` makes."""
    return te.compute(tuple(shape), element, name=_RESULT)


def scheduled(arguments: list[TensorExpr], reduction: str = "") -> PrimFunc:
    """The program of a tensor expression: the outermost loops in parallel, the last as vectors.

    Args:
        arguments: Of the program; the last is its result, of `computed`.
        reduction: The name of the block that the result is computed from, where there is one.
    """
    shape = [int(extent) for extent in arguments[-1].shape]
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func(arguments)}))
    *outer, lane = schedule.get_loops(schedule.get_sblock(_RESULT))
    if len(outer) > 1:
        outer = [schedule.fuse(*outer[:2]), *outer[2:]]
    if prod(shape) >= _PARALLEL_FROM:
        schedule.parallel(outer[0])
    if reduction:
        _reduce_within(schedule, schedule.get_sblock(reduction), outer[-1])
    schedule.vectorize(lane)
    return finished(schedule.mod["main"])


def _reduce_within(schedule: Schedule, block: BlockRV, row: LoopRV) -> None:
    """Reduce a vector of lanes at a time, and keep it in a register."""
    schedule.compute_at(block, row, preserve_unit_loops=True)
    *_, lane, down, right = schedule.get_loops(block)
    schedule.reorder(down, right, lane)
    schedule.vectorize(lane)
    init = schedule.decompose_reduction(block, down)
    schedule.set_scope(init, 0, "local")
