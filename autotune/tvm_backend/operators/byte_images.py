"""Operators on bytes between the products: sums, tables, pools. They are scheduled here and need no search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import tvm
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.operators.integer_product import LANES, WORD, added, to_byte
from autotune.tvm_backend.programs import finished
from autotune.tvm_backend.types import BlockRV, Buffer, LoopRV, PrimExpr, PrimFunc, Schedule, TensorExpr

_PARALLEL_FROM = 16384  # bytes; fewer are done before other threads have begun
Element = Callable[..., PrimExpr]


def image(shape: Sequence[int], name: str = "data", dtype: str = "uint8") -> TensorExpr:
    """A placeholder for bytes, or for elements of another type."""
    return te.placeholder(tuple(shape), dtype, name)


def floats(size: int, name: str) -> TensorExpr:
    """A placeholder for constants."""
    return te.placeholder((size,), "float32", name)


def sum_kernel(shape: Sequence[int]) -> PrimFunc:
    """The program of a quantised addition; the constants are those of `added`."""
    one = image(shape, "one")
    other = image(shape, "other")
    constants = floats(5, "constants")
    result = _compute(shape, lambda *position: added(_float(one[position]), _float(other[position]), constants))
    return scheduled([one, other, constants, result])


def product_kernel(shape: Sequence[int], gate: Sequence[int] = ()) -> PrimFunc:
    """The program of a quantised multiplication.

    Its constants are the zero points of both, the factor, the zero point of the result, its least and greatest value.

    Args:
        shape: Of the first operand.
        gate: Of the other; an axis of extent 1 has a number for all places along it. By default, that of the first.
    """
    one = image(shape, "one")
    other = image(gate or shape, "other")
    constants = floats(6, "constants")

    def element(*position: PrimExpr) -> PrimExpr:
        place = tuple(index if extent > 1 else 0 for index, extent in zip(position, gate or shape, strict=True))
        product = (_float(one[position]) - constants[0]) * (_float(other[place]) - constants[1])
        return to_byte(product * constants[2], constants[3], constants[4], constants[5])

    return scheduled([one, other, constants, _compute(shape, element)])


def channel_kernel(shape: Sequence[int]) -> PrimFunc:
    """The program of round(x * factor[c] + offset[c]) + zero for each channel c, the last two axes.

    Its limits are those of a convolution.
    """
    data = image(shape)
    limits = floats(3, "limits")
    factor, offset = (te.placeholder(tuple(shape[-2:]), "float32", name) for name in ("factor", "offset"))

    def element(*position: PrimExpr) -> PrimExpr:
        value = _float(data[position]) * factor[position[-2:]] + offset[position[-2:]]
        return to_byte(value, limits[0], limits[1], limits[2])

    return scheduled([data, factor, offset, limits, _compute(shape, element)])


def table_kernel(shape: Sequence[int]) -> PrimFunc:
    """The program that looks bytes up in a table."""
    data = image(shape)
    table = image((256,), "table")
    return scheduled([data, table, _compute(shape, lambda *position: table[data[position].astype("int32")])])


def permuted_table_kernel(shape: Sequence[int]) -> PrimFunc:
    """The program that looks rows of 64 bytes up in a table by AVX512-VBMI.

    An instruction looks 64 bytes up in 128 by their low seven bits. The high bit says which of two results holds.
    """
    rows, lanes = shape
    vector = f"int8x{lanes}"
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        handles = [T.arg(name, T.handle()) for name in ("data", "table", "result")]
        data = T.match_buffer(handles[0], (rows, lanes), "uint8")
        table = T.match_buffer(handles[1], (256,), "uint8")
        result = T.match_buffer(handles[2], (rows, lanes), "uint8")
        quarters = [tirx.reinterpret(vector, table[T.ramp(first, 1, lanes)]) for first in range(0, 256, lanes)]
        with (T.parallel if prod(shape) >= _PARALLEL_FROM else T.serial)(0, rows) as row:
            index = tirx.reinterpret(vector, data[row, T.ramp(0, 1, lanes)])
            halves = [
                tirx.call_llvm_pure_intrin(vector, "llvm.x86.avx512.vpermi2var.qi.512", first, index, second)
                for first, second in (quarters[:2], quarters[2:])
            ]
            is_low = index >= tirx.Broadcast(tirx.const(0, "int8"), lanes)
            chosen = tirx.reinterpret(f"uint8x{lanes}", tirx.Select(is_low, *halves))
            T.buffer_store(result, chosen, [row, T.ramp(0, 1, lanes)])
    return finished(builder.get())


def quantise_kernel(shape: Sequence[int], lanes: int) -> PrimFunc:
    """The program that makes an image of floats (N, C, H, W). Its constants are the scale and the zero point."""
    batch, channels, height, width = shape
    data = te.placeholder(tuple(shape), "float32", "data")
    constants = floats(2, "constants")
    chunks = -(-channels // lanes)

    def element(n: PrimExpr, y: PrimExpr, x: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        channel = chunk * lanes + lane
        value = data[n, tirx.min(channel, channels - 1), y, x] / constants[0]
        return to_byte(value, constants[1], tirx.const(0.0, "float32"), tirx.const(255.0, "float32"))

    return scheduled([data, constants, _compute((batch, height, width, chunks, lanes), element)])


def quantise_pixels_kernel(shape: Sequence[int], padding: Sequence[int]) -> PrimFunc:
    """The program that makes an image of floats (N, C, H, W) with four channels at most, its zero point around it.

    Sixteen pixels of a row are computed at a time and written as one vector, as a row of vectors of four channels would
    take four times as long. Its constants are the scale and the zero point.

    Args:
        shape: Of the floats; a row has 16 at least.
        padding: Pixels at the top, left, bottom and right.
    """
    batch, channels, height, width = shape
    top, left, bottom, right = padding
    size = (batch, height + top + bottom, width + left + right, 1, WORD)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        handles = [T.arg(name, T.handle()) for name in ("data", "constants", "result")]
        data = T.match_buffer(handles[0], tuple(shape), "float32")
        constants = T.match_buffer(handles[1], (2,), "float32")
        result = T.match_buffer(handles[2], size, "uint8")
        flat = T.decl_buffer((batch, size[1], size[2] * WORD), "uint8", data=result.data)
        zero = constants[1]
        point = tirx.Broadcast(zero.astype("int32").astype("uint8"), WORD)
        with T.parallel(0, batch * size[1]) as row:
            image_row = row // size[1], row % size[1]
            line = tirx.max(tirx.min(image_row[1] - top, height - 1), 0)
            for first, count in ((0, left), (left + width, right)):
                if count:
                    with T.serial(0, count) as x:
                        T.buffer_store(flat, point, [*image_row, T.ramp((first + x) * WORD, 1, WORD)])
            with T.serial(0, -(-width // LANES)) as step:
                x = tirx.min(step * LANES, width - LANES)
                planes = [
                    _quantised_run(data, constants, (image_row[0], channel, line, x)) for channel in range(channels)
                ]
                planes += [tirx.Broadcast(tirx.const(0, "uint8"), LANES)] * (WORD - channels)
                order = [byte % WORD * LANES + byte // WORD for byte in range(WORD * LANES)]
                pixels = tirx.Shuffle(planes, [tirx.const(byte, "int32") for byte in order])
                inside = tirx.all(image_row[1] >= top, image_row[1] < top + height)
                around = tirx.Broadcast(zero.astype("int32").astype("uint8"), WORD * LANES)
                chosen = tirx.Select(tirx.Broadcast(inside, WORD * LANES), pixels, around)
                T.buffer_store(flat, chosen, [*image_row, T.ramp((left + x) * WORD, 1, WORD * LANES)])
    return finished(builder.get())


def _quantised_run(data: Buffer, constants: Buffer, place: tuple[PrimExpr, ...]) -> PrimExpr:
    """Sixteen floats of a row as bytes."""
    values = data[(*place[:3], T.ramp(place[3], 1, LANES))]
    scale, zero = (tirx.Broadcast(constants[index], LANES) for index in (0, 1))
    low, high = (tirx.Broadcast(tirx.const(limit, "float32"), LANES) for limit in (0.0, 255.0))
    inside = tirx.max(tirx.min(values / scale, high - zero), low - zero)
    return (tirx.round(inside) + zero).astype(f"int32x{LANES}").astype(f"uint8x{LANES}")


def max_pool_kernel(shape: Sequence[int], kernel: tuple[int, int], window: Window) -> PrimFunc:
    """The program of a maximum pooling without dilation."""
    data = image(shape)
    height, width = shape[1:3]
    top, left, *_ = window.padding
    down, right = (te.reduce_axis((0, size)) for size in kernel)

    def largest(n: PrimExpr, y: PrimExpr, x: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        row, column = window.at(y, x, down, right)
        # The pixel at the border is in the window too, so that reading it once more changes nothing.
        inside = (te.max(te.min(row - top, height - 1), 0), te.max(te.min(column - left, width - 1), 0))
        return te.max(data[(n, *inside, chunk, lane)], axis=[down, right])

    shape = (shape[0], *window.size, *shape[3:])
    pooled = te.compute(shape, largest, name="pooled")
    return scheduled([data, _compute(shape, lambda *position: pooled[position])], "pooled")


def average_kernel(shape: Sequence[int], kernel: tuple[int, int], window: Window) -> PrimFunc:
    """The program of an average pooling without padding; the other arguments are those of a requantised sum.

    They are the zero points of all added bytes, the factor, and the limits of a convolution.
    """
    data = image(shape)
    constants = floats(2, "constants")
    limits = floats(3, "limits")
    down, right = (te.reduce_axis((0, size)) for size in kernel)
    shape = (shape[0], *window.size, *shape[3:])

    def total(n: PrimExpr, y: PrimExpr, x: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        position = (n, *window.at(y, x, down, right), chunk, lane)
        return te.sum(data[position].astype("int32"), axis=[down, right])

    sums = te.compute(shape, total, name="total")

    def element(*position: PrimExpr) -> PrimExpr:
        value = (_float(sums[position]) - constants[0]) * constants[1]
        return to_byte(value, limits[0], limits[1], limits[2])

    return scheduled([data, constants, limits, _compute(shape, element)], "total")


def concat_kernel(shapes: Sequence[Sequence[int]]) -> PrimFunc:
    """The program that puts the channels of images together, each requantised: clip(round(x * factor + offset) + zero).

    Its constants are, of each image, the factor and the offset, and last the zero point of the result.
    """
    images = [image(shape, f"image{index}") for index, shape in enumerate(shapes)]
    constants = te.placeholder((len(shapes) + 1, 2), "float32", "constants")

    def requantised(index: int, *position: PrimExpr) -> PrimExpr:
        value = _float(images[index][position]) * constants[index, 0] + constants[index, 1]
        low, high = (tirx.const(limit, "float32") for limit in (0.0, 255.0))
        return to_byte(value, constants[len(shapes), 0], low, high)

    def element(n: PrimExpr, y: PrimExpr, x: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        first = sum(shape[3] for shape in shapes[:-1])
        value = requantised(len(shapes) - 1, n, y, x, chunk - first, lane)
        for index in reversed(range(len(shapes) - 1)):
            past = first
            first = past - shapes[index][3]
            value = tirx.if_then_else(chunk < past, requantised(index, n, y, x, chunk - first, lane), value)
        return value

    chunks = sum(shape[3] for shape in shapes)
    result = _compute((*shapes[0][:3], chunks, LANES), element)
    return scheduled([*images, constants, result])


def slice_kernel(shape: Sequence[int], first: int, count: int, dtype: str = "uint8") -> PrimFunc:
    """The program that copies so many chunks of channels of an image, from one on."""
    data = image(shape, dtype=dtype)
    result = _compute((*shape[:3], count, shape[4]), lambda n, y, x, chunk, lane: data[n, y, x, chunk + first, lane])
    return scheduled([data, result])


def enlarge_kernel(shape: Sequence[int], factors: tuple[int, int], dtype: str = "uint8") -> PrimFunc:
    """The program that repeats each pixel of an image so many times down and right."""
    batch, height, width, chunks, lanes = shape
    data = image(shape, dtype=dtype)
    down, right = factors
    result = _compute(
        (batch, height * down, width * right, chunks, lanes),
        lambda n, y, x, *rest: data[(n, y // down, x // right, *rest)],
    )
    return scheduled([data, result])


def _float(value: PrimExpr) -> PrimExpr:
    return value.astype("float32")


def _compute(shape: Sequence[int], element: Element) -> TensorExpr:
    return te.compute(tuple(shape), element, name="result")


def scheduled(arguments: list[TensorExpr], reduction: str = "") -> PrimFunc:
    """The program of a tensor expression: the outermost loops in parallel, the last as vectors.

    Args:
        arguments: Of the program; the last is its result.
        reduction: The name of the block that the result is computed from, where there is one.
    """
    shape = [int(extent) for extent in arguments[-1].shape]
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func(arguments)}))
    *outer, lane = schedule.get_loops(schedule.get_sblock("result"))
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
