"""Operators on bytes between the products: sums, tables, pools. They are scheduled here and need no search."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from autotune.tvm_backend.isa.values import LANES, WORD, ByteTable
from autotune.tvm_backend.isa.vectors import VECTORS
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.operators.element_types import BYTES, to_byte
from autotune.tvm_backend.operators.images import (
    average_program,
    computed,
    concat_program,
    image,
    pack_program,
    scheduled,
)
from autotune.tvm_backend.operators.integer_product import added
from autotune.tvm_backend.programs import finished
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc, TensorExpr

_PARALLEL_FROM = 16384  # bytes; fewer are done before other threads have begun


def floats(size: int, name: str) -> TensorExpr:
    """A placeholder for constants."""
    return te.placeholder((size,), "float32", name)


def sum_kernel(shape: Sequence[int]) -> PrimFunc:
    """The program of a quantised addition; the constants are those of `added`."""
    one = image(shape, BYTES.dtype, "one")
    other = image(shape, BYTES.dtype, "other")
    constants = floats(5, "constants")
    result = computed(shape, lambda *position: added(_float(one[position]), _float(other[position]), constants))
    return scheduled([one, other, constants, result])


def product_kernel(shape: Sequence[int], gate: Sequence[int] = ()) -> PrimFunc:
    """The program of a quantised multiplication.

    Its constants are the zero points of both, the factor, the zero point of the result, its least and greatest value.

    Args:
        shape: Of the first operand.
        gate: Of the other; an axis of extent 1 has a number for all places along it. By default, that of the first.
    """
    one = image(shape, BYTES.dtype, "one")
    other = image(gate or shape, BYTES.dtype, "other")
    constants = floats(6, "constants")

    def element(*position: PrimExpr) -> PrimExpr:
        place = tuple(index if extent > 1 else 0 for index, extent in zip(position, gate or shape, strict=True))
        product = (_float(one[position]) - constants[0]) * (_float(other[place]) - constants[1])
        return to_byte(product * constants[2], constants[3], constants[4], constants[5])

    return scheduled([one, other, constants, computed(shape, element)])


def channel_kernel(shape: Sequence[int]) -> PrimFunc:
    """The program of round(x * factor[c] + offset[c]) + zero for each channel c, the last two axes.

    Its limits are those of a convolution.
    """
    data = image(shape, BYTES.dtype)
    limits = floats(3, "limits")
    factor, offset = (te.placeholder(tuple(shape[-2:]), "float32", name) for name in ("factor", "offset"))

    def element(*position: PrimExpr) -> PrimExpr:
        value = _float(data[position]) * factor[position[-2:]] + offset[position[-2:]]
        return to_byte(value, limits[0], limits[1], limits[2])

    return scheduled([data, factor, offset, limits, computed(shape, element)])


def table_kernel(shape: Sequence[int], instructions: ByteTable | None = None) -> PrimFunc:
    """The program that looks bytes up in a table.

    Args:
        instructions: Those for rows of 64 bytes; None to look them up one by one.
    """
    if instructions is not None:
        return _permuted_table_kernel(shape, instructions)
    data = image(shape, BYTES.dtype)
    table = image((256,), BYTES.dtype, "table")
    return scheduled([data, table, computed(shape, lambda *position: table[data[position].astype("int32")])])


def _permuted_table_kernel(shape: Sequence[int], instructions: ByteTable) -> PrimFunc:
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
            chosen = tirx.reinterpret(f"uint8x{lanes}", instructions.look_up(VECTORS, quarters, index))
            T.buffer_store(result, chosen, [row, T.ramp(0, 1, lanes)])
    return finished(builder.get())


def quantise_kernel(shape: Sequence[int], lanes: int) -> PrimFunc:
    """The program that makes an image of floats (N, C, H, W). Its constants are the scale and the zero point."""
    constants = floats(2, "constants")

    def finish(value: PrimExpr, _channel: PrimExpr) -> PrimExpr:
        low, high = (tirx.const(limit, "float32") for limit in (0.0, 255.0))
        return to_byte(value / constants[0], constants[1], low, high)

    return pack_program(shape, lanes, finish, [constants])


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


def average_kernel(shape: Sequence[int], kernel: tuple[int, int], window: Window) -> PrimFunc:
    """The program of an average pooling without padding; the other arguments are those of a requantised sum.

    They are the zero points of all added bytes, the factor, and the limits of a convolution.
    """
    constants = floats(2, "constants")
    limits = floats(3, "limits")

    def finish(total: PrimExpr) -> PrimExpr:
        value = (_float(total) - constants[0]) * constants[1]
        return to_byte(value, limits[0], limits[1], limits[2])

    operands = (constants, limits)
    return average_program(BYTES, shape, kernel, window, total="int32", finish=finish, operands=operands)


def concat_kernel(shapes: Sequence[Sequence[int]]) -> PrimFunc:
    """The program that puts the channels of images together, each requantised: clip(round(x * factor + offset) + zero).

    Its constants are, of each image, the factor and the offset, and last the zero point of the result.
    """
    constants = te.placeholder((len(shapes) + 1, 2), "float32", "constants")

    def requantised(index: int, byte: PrimExpr) -> PrimExpr:
        value = _float(byte) * constants[index, 0] + constants[index, 1]
        low, high = (tirx.const(limit, "float32") for limit in (0.0, 255.0))
        return to_byte(value, constants[len(shapes), 0], low, high)

    return concat_program(shapes, BYTES.dtype, [constants], requantised)


def _float(value: PrimExpr) -> PrimExpr:
    return value.astype("float32")
