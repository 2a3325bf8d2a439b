"""Operators on bfloat16 as tensor expressions, and the programs that are made of them.

An image has shape (N, H, W, C / b, b): the channels of a pixel lie together, in chunks of b = 16, or of 4 for an input
with few channels. Rows (R, C) of a product are the image (1, 1, R, C / 16, 16). The last chunk may have padding lanes,
on which no result depends.

All arithmetic is in float32. What a kernel writes is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

from tvm import te, tirx
from tvm.script import tirx as T

from autotune.tvm_backend.intrinsics.amx_and_vector_tiles import (
    BFLOAT16_DEPTHWISE,
    INTRINSIC,
    LEFT_ALONE,
    OUT,
    PAD,
)
from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE, from_float, to_float
from autotune.tvm_backend.isa.available import Instructions
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators import images
from autotune.tvm_backend.operators.chunked_product import ChunkedProduct, Grouping, padded
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.operators.element_types import BFLOAT16
from autotune.tvm_backend.operators.images import Element, scheduled
from autotune.tvm_backend.programs import finished, unscheduled
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc, TensorExpr

PAIR = BFLOAT16.word
CONVERT = "bfloat16_convert"  # the name of a kernel that changes the type of an image
PAIRS = "bfloat16_pairs"  # and of one that packs matrices as weights
Shape = tuple[int, ...]


def number(tensor: TensorExpr, *position: PrimExpr) -> PrimExpr:
    """Return the element of a tensor as float32, whether it is kept so or as bfloat16."""
    element = tensor[position]
    return to_float(element) if str(tensor.dtype) == DTYPE else element


def sums_of_convolution(
    data: TensorExpr,
    weight: TensorExpr,
    window: Window,
    instructions: Instructions,
    grouping: Grouping | None = None,
) -> TensorExpr:
    """Express the sums of a convolution, or of rows, in float32; the arguments are those of a `ChunkedProduct`."""
    return ChunkedProduct(BFLOAT16, window, instructions, grouping).sums(data, weight, tirx.const(0, DTYPE))


def sums_of_pixels(
    data: TensorExpr, weight: TensorExpr, window: Window, wide: int, instructions: Instructions
) -> TensorExpr:
    """Express the sums of a convolution of one image over a row of all of its pixels.

    The pixels that a pixel of the output depends on are copied, one after the other. Rows of a small image are so
    short that they would fill few rows of a tile.

    Args:
        data: The image (1, H, W, IC, b).
        weight: (OC, 1, 1, KH * KW * IC, b / 2, 16, 2).
        window: The geometry.
        wide: KW.
        instructions: Those that compute the product.

    Returns:
        float32 (1, 1, OH * OW, OC, 16).
    """
    _, height, width, inner, lanes = map(int, data.shape)
    across = window.size[1]
    top, left, *_ = window.padding

    def pixel(_n: PrimExpr, _row: PrimExpr, x: PrimExpr, part: PrimExpr, lane: PrimExpr) -> PrimExpr:
        tap = part // inner
        place = window.at(x // across, x % across, tap // wide, tap % wide)
        y = place[0] - top
        x = place[1] - left
        inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
        element = data[0, y, x, part % inner, lane]
        return tirx.if_then_else(inside, element, tirx.const(0, DTYPE)) if any(window.padding) else element

    row = te.compute((1, 1, prod(window.size), weight.shape[3], lanes), pixel, name=PAD, attrs=LEFT_ALONE)
    return sums_of_convolution(row, weight, Window((1, prod(window.size))), instructions)


def sums_of_depthwise(data: TensorExpr, weight: TensorExpr, window: Window) -> TensorExpr:
    """Express the sums of a depthwise convolution. Its weights are float32 (C, KH, KW, 16, 1)."""
    source = padded(data, window, tirx.const(0, DTYPE))
    down, right, one = axes = [te.reduce_axis((0, weight.shape[axis])) for axis in (1, 2, 4)]

    def product(n: PrimExpr, y: PrimExpr, x: PrimExpr, c: PrimExpr, lane: PrimExpr) -> PrimExpr:
        element = to_float(source[(n, *window.at(y, x, down, right), c, lane)])
        return te.sum(element * weight[c, down, right, lane, one], axis=axes)

    shape = (data.shape[0], *window.size, weight.shape[0], weight.shape[3])
    attrs = {"schedule_rule": BFLOAT16_DEPTHWISE, INTRINSIC: ""}
    return te.compute(shape, product, name=BFLOAT16_DEPTHWISE, attrs=attrs)


def product_program(operands: Sequence[TensorExpr], sums: TensorExpr, element: Element, dtype: str) -> PrimFunc:
    """Return the program of a product and what follows it element by element. A schedule has to be found for it.

    Args:
        operands: Placeholders, in the order of the arguments.
        sums: What the product is expressed as.
        element: The element of the result at an index.
        dtype: Of the result: float32 or uint16.
    """
    result = te.compute(sums.shape, lambda *position: _written(element(*position), dtype), name=OUT, attrs=LEFT_ALONE)
    return unscheduled([*operands, result])


def elementwise_program(operands: Sequence[TensorExpr], shape: Shape, element: Element, dtype: str) -> PrimFunc:
    """Return the scheduled program of a result that depends on its operands element by element."""
    result = te.compute(shape, lambda *position: _written(element(*position), dtype), name="result")
    return scheduled([*operands, result])


def _written(value: PrimExpr, dtype: str) -> PrimExpr:
    return from_float(value) if dtype == DTYPE else value


def pack_program(shape: Shape, lanes: int) -> PrimFunc:
    """Return the program that makes an image of float32 (N, C, H, W), with zeros in padding lanes."""
    channels = shape[1]

    def finish(value: PrimExpr, channel: PrimExpr) -> PrimExpr:
        return from_float(value if channels % lanes == 0 else tirx.Select(channel < channels, value, 0.0))

    return images.pack_program(shape, lanes, finish)


def lines_of(shape: Shape, window: Window, pairs: int) -> Shape:
    """Return the shape of the lines of an image, (N, H', G, E), with groups of E elements: of one pixel, or of two.

    A line is a row with zeros around it, whose channels lie together without gaps.

    Args:
        shape: That of the image, (N, C, H, W).
        window: The geometry of the convolution that reads the lines.
        pairs: How many pairs of elements a line has at least.
    """
    batch, channels, height, _ = shape
    size = math.lcm(PAIR, channels)
    return batch, height + window.padding[0] + window.padding[2], -(-pairs * PAIR // size), size


def line_program(shape: Shape, window: Window, lines: Shape) -> PrimFunc:
    """Return the program that makes lines of float32 (N, C, H, W). Their shape is what `lines_of` returns.

    Of a row, 16 pixels at a time are a vector of each channel, which are shuffled to one. What is left at its end, and
    the zeros around it, are written one by one.
    """
    batch, channels, height, width = shape
    top, left, *_ = window.padding
    _, rows, *groups = lines
    size = prod(groups)
    blocks = min(width, size // channels - left) // LANES
    begin = left * channels
    rest = begin + blocks * LANES * channels
    order = [tirx.const(channel * LANES + pixel, "int32") for pixel in range(LANES) for channel in range(channels)]

    def joined(*vectors: PrimExpr) -> PrimExpr:
        return tirx.Shuffle(list(map(from_float, vectors)), order)

    def element(data: Buffer, image: PrimExpr, row: PrimExpr, position: PrimExpr) -> PrimExpr:
        column = position // channels - left
        near = te.max(te.min(column, width - 1), 0)
        inside = tirx.all(column >= 0, column < width)
        return from_float(tirx.Select(inside, data[image, position % channels, row, near], 0.0))

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def pack(a: T.handle, b: T.handle) -> None:
        data = T.match_buffer(a, shape, "float32")
        grouped = T.match_buffer(b, lines, DTYPE)
        packed = T.decl_buffer((batch, rows, size), DTYPE, data=grouped.data)
        with T.sblock("root"):
            for line in T.parallel(batch * rows):
                if line % rows < top or line % rows >= top + height:
                    for position in T.serial(size):
                        packed[line // rows, line % rows, position] = T.uint16(0)
                else:
                    for position in T.serial(begin):
                        packed[line // rows, line % rows, position] = T.uint16(0)
                    for block in T.serial(blocks):
                        packed[
                            line // rows,
                            line % rows,
                            T.ramp(begin + block * LANES * channels, 1, LANES * channels),
                        ] = joined(
                            *[
                                data.vload([line // rows, channel, line % rows - top, block * LANES], "float32x16")
                                for channel in range(channels)
                            ]
                        )
                    for position in T.serial(size - rest):
                        packed[line // rows, line % rows, rest + position] = element(
                            data, line // rows, line % rows - top, rest + position
                        )

    return finished(pack)


def pairs_program(batch: int, inner: int, columns: int) -> PrimFunc:
    """Return the program that packs float32 matrices (B, K, N) as weights, (B, N / 16, K / 2, 16 * 2).

    K and N are multiples of 16.
    """
    pairs = inner // PAIR
    chunks = columns // LANES
    order = [tirx.const(half * LANES + lane, "int32") for lane in range(LANES) for half in range(PAIR)]

    def interleaved(one: PrimExpr, other: PrimExpr) -> PrimExpr:
        return tirx.Shuffle([from_float(one), from_float(other)], order)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def pack(a: T.handle, b: T.handle) -> None:
        data = T.match_buffer(a, (batch, inner, columns), "float32")
        packed = T.match_buffer(b, (batch, chunks, pairs, PAIR * LANES), DTYPE)
        with T.sblock("root"):
            for part in T.parallel(batch * chunks):
                for pair in T.serial(pairs):
                    packed[part // chunks, part % chunks, pair, T.ramp(T.int32(0), 1, PAIR * LANES)] = interleaved(
                        data.vload([part // chunks, pair * PAIR, part % chunks * LANES], "float32x16"),
                        data.vload([part // chunks, pair * PAIR + 1, part % chunks * LANES], "float32x16"),
                    )

    return finished(pack)


def average_program(shape: Shape, kernel: tuple[int, int], window: Window) -> PrimFunc:
    """Return the program of an average pooling without padding."""
    factor = tirx.const(1.0 / prod(kernel), "float32")
    return images.average_program(
        BFLOAT16, shape, kernel, window, total="float32", finish=lambda total: from_float(total * factor)
    )
