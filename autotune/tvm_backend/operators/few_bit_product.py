"""Products of activations with a constant matrix of few bits, which stays packed, as tensor expressions.

An element of the matrix is scale * code + offset, with a scale and an offset for each block of a row. Activations are
float32, or bytes with a scale for each block. A product is computed block by block:

    y = sum over blocks of scale * (sum of x * code) + offset * (sum of x)

The matrix lies in chunks of 16 rows. A vector has `word` neighbouring codes of each row of a chunk. Of codes of four
bits a byte has two that lie half a block apart, so that both halves are used as vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from tvm import te, tirx

from autotune.tvm_backend.intrinsics.amx_and_vector_tiles import INTRINSIC, LEFT_ALONE
from autotune.tvm_backend.intrinsics.few_bit_dots import WORD, packed_dot
from autotune.tvm_backend.intrinsics.few_bit_schedules import PACKED_DOT, UNPACKED
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.programs import over_programs, unscheduled
from autotune.tvm_backend.types import IRModule, PrimExpr, PrimFunc, Target, TensorExpr

Array = npt.NDArray[Any]
SUMS = "packed_sums"
KERNEL = "packed_product"  # the name of its kernels
PRODUCT = "autotune.packed_product"  # the attribute of an imported program that says what it computes
_NIBBLE_BITS = 4
KERNELS = 64  # of each kind that are remembered: the layers of a model have the same


@dataclass(frozen=True)
class PackedForm:
    """How a matrix is packed: programs of matrices of the same form and shape are equal.

    Attributes:
        bits: Of a code.
        block: Elements of a block.
        scales: The element type of scales and offsets.
        zero: The code that stands for 0; None where there are offsets.
        word: Neighbouring codes of a row in a vector: 4 for activations in bytes, 1 for those in float32.
    """

    bits: int
    block: int
    scales: str
    zero: int | None
    word: int

    @property
    def halves(self) -> int:
        """Codes of a byte."""
        return 2 if self.bits <= _NIBBLE_BITS else 1

    @property
    def groups(self) -> int:
        """Vectors of bytes of a block."""
        return self.block // self.halves // self.word


@dataclass(frozen=True)
class _Described:
    """What `packed_product` gets, besides the target."""

    form: PackedForm
    shape: tuple[int, int, int]
    residual: bool


@dataclass(frozen=True)
class PackedRows:
    """A packed matrix of n rows.

    Attributes:
        form: How it is packed.
        elements: Bytes (n / 16, blocks, groups, 16, word).
        scale: Floats (n / 16, blocks, 16).
        offset: The same for offsets; None where the form has a zero.
    """

    form: PackedForm
    elements: Array
    scale: Array
    offset: Array | None

    @property
    def rows(self) -> int:
        return int(self.elements.shape[0]) * LANES

    @property
    def columns(self) -> int:
        return int(self.elements.shape[1]) * self.form.block

    @property
    def arrays(self) -> list[Array]:
        """The arguments of a program that reads it."""
        return [self.elements, self.scale, *([] if self.offset is None else [self.offset])]


def pack(codes: Array, scale: Array, offset: Array | None, form: PackedForm) -> PackedRows:
    """Pack a matrix.

    Args:
        codes: Unsigned integers (rows, columns); the number of rows is a multiple of 16.
        scale: Floats (rows, blocks).
        offset: Floats (rows, blocks); None where the form has a zero.
        form: How it is packed.
    """
    rows, blocks = scale.shape
    split = codes.reshape(rows // LANES, LANES, blocks, form.halves, form.groups, form.word)
    halves = split.transpose(3, 0, 2, 4, 1, 5)
    elements = halves[0] | halves[1] << _NIBBLE_BITS if form.halves == 2 else halves[0]

    def across(values: Array) -> Array:
        by_chunk = values.astype(form.scales).reshape(rows // LANES, LANES, blocks)
        return np.ascontiguousarray(by_chunk.transpose(0, 2, 1))

    return PackedRows(
        form,
        np.ascontiguousarray(elements.astype(np.uint8)),
        across(scale),
        None if offset is None else across(offset),
    )


def weight_placeholders(form: PackedForm, rows: int, columns: int) -> list[TensorExpr]:
    """Return the arguments for a packed matrix of so many rows and columns."""
    chunks = rows // LANES
    blocks = columns // form.block
    elements = te.placeholder((chunks, blocks, form.groups, LANES, form.word), "uint8", "elements")
    scales = [te.placeholder((chunks, blocks, LANES), form.scales, name) for name in ("scale", "offset")]
    return [elements, *scales[: 1 if form.zero is not None else 2]]


def code_at(form: PackedForm, elements: TensorExpr, chunk: PrimExpr, lane: PrimExpr, column: PrimExpr) -> PrimExpr:
    """Return the code of one element, as int32."""
    block = column // form.block
    place = column % form.block
    size = form.block // form.halves
    byte = elements[chunk, block, place % size // form.word, lane, place % form.word].astype("int32")
    if form.halves == 1:
        return byte
    return tirx.bitwise_and(tirx.shift_right(byte, place // size * _NIBBLE_BITS), tirx.const(15, "int32"))


def packed_product(
    form: PackedForm, shape: tuple[int, int, int], target: Target | None, *, residual: bool = False
) -> PrimFunc:
    """Return the program of a product of activations (rows, columns) with the transpose of a packed matrix.

    Its arguments are the activations, in bytes or float32; where they are bytes their scales (rows, blocks); their sums
    (rows, blocks); the matrix; if asked for, what is added to the result; and the result, float32.

    Args:
        form: How the matrix is packed.
        shape: Rows of the activations, rows of the matrix, columns of both.
        target: Whose instructions are used; None for none.
        residual: Whether something is added.
    """
    rows, outputs, columns = shape
    blocks = columns // form.block
    in_bytes = form.word == WORD
    data = te.placeholder((rows, columns), "int8" if in_bytes else "float32", "data")
    step = [te.placeholder((rows, blocks), "float32", "step")] if in_bytes else []
    total = te.placeholder((rows, blocks), "float32", "total")
    weights = weight_placeholders(form, outputs, columns)
    more = [te.placeholder((rows, outputs), "float32", "more")] if residual else []
    dot = packed_dot(target, form.bits) if in_bytes and target is not None else None
    dots = _dots(form, data, _unpacked(form, weights[0]), dot.name if dot else "")
    sums = _sums(form, dots, [*step, total], weights[1:])

    def element(row: PrimExpr, column: PrimExpr) -> PrimExpr:
        value = sums[row, column // LANES, column % LANES]
        return value + more[0][row, column] if more else value

    result = te.compute((rows, outputs), element, name="result", attrs=LEFT_ALONE)
    return unscheduled([data, *step, total, *weights, *more, result])


@lru_cache(KERNELS)
def imported_product(form: PackedForm, shape: tuple[int, int, int], *, residual: bool = False) -> PrimFunc:
    """Return the program of `packed_product` for any CPU. `for_target` makes that for a target of it."""
    program = packed_product(form, shape, None, residual=residual)
    return program.with_attr(PRODUCT, msgspec.json.encode(_Described(form, shape, residual)).decode())


def for_target(module: IRModule, target: Target) -> IRModule:
    """Return a module in which the products of packed weights use the instructions of a target."""

    def rewritten(program: PrimFunc) -> PrimFunc:
        text = (program.attrs or {}).get(PRODUCT)
        if text is None:
            return program
        described = msgspec.json.decode(str(text), type=_Described)
        return packed_product(described.form, described.shape, target, residual=described.residual)

    return over_programs(module, rewritten)


def has_packed_products(module: IRModule) -> bool:
    """Return whether a program of a prepared module is a product of packed weights."""
    return any(str(name.name_hint).startswith(KERNEL) for name in module.functions)


def _unpacked(form: PackedForm, elements: TensorExpr) -> TensorExpr:
    """The codes as bytes, or as floats where activations are: (n / 16, blocks, halves, groups, 16, word)."""
    chunks, blocks, groups, lanes, word = elements.shape
    dtype = "uint8" if form.word == WORD else "float32"

    def element(*at: PrimExpr) -> PrimExpr:
        chunk, block, half, group, lane, place = at
        byte = elements[chunk, block, group, lane, place]
        if form.halves == 2:
            shift = (half * _NIBBLE_BITS).astype("uint8")
            byte = tirx.bitwise_and(tirx.shift_right(byte, shift), tirx.const(15, "uint8"))
        return byte.astype(dtype)

    return te.compute((chunks, blocks, form.halves, groups, lanes, word), element, name=UNPACKED, attrs=LEFT_ALONE)


def _dots(form: PackedForm, data: TensorExpr, codes: TensorExpr, instruction: str) -> TensorExpr:
    """The sums of x * code of each block, (rows, n / 16, blocks, 16)."""
    chunks, blocks, halves, groups, lanes, word = codes.shape
    half, group, place = (te.reduce_axis((0, extent)) for extent in (halves, groups, word))
    dtype = "int32" if form.word == WORD else "float32"

    def element(row: PrimExpr, chunk: PrimExpr, block: PrimExpr, lane: PrimExpr) -> PrimExpr:
        column = ((block * halves + half) * groups + group) * word + place
        code = codes[chunk, block, half, group, lane, place]
        return te.sum(data[row, column].astype(dtype) * code.astype(dtype), axis=[half, group, place])

    attrs = {"schedule_rule": PACKED_DOT, INTRINSIC: instruction}
    return te.compute((data.shape[0], chunks, blocks, lanes), element, name=PACKED_DOT, attrs=attrs)


def _sums(form: PackedForm, dots: TensorExpr, activations: list[TensorExpr], weights: list[TensorExpr]) -> TensorExpr:
    """The products, (rows, n / 16, 16)."""
    *step, total = activations
    scale, *offset = weights
    block = te.reduce_axis((0, dots.shape[2]))

    def element(row: PrimExpr, chunk: PrimExpr, lane: PrimExpr) -> PrimExpr:
        value = dots[row, chunk, block, lane].astype("float32")
        if step:
            value = value * step[0][row, block]
        if form.zero:
            value = value - tirx.const(float(form.zero), "float32") * total[row, block]
        value = value * scale[chunk, block, lane].astype("float32")
        if offset:
            value = value + offset[0][chunk, block, lane].astype("float32") * total[row, block]
        return te.sum(value, axis=block)

    return te.compute((dots.shape[0], dots.shape[1], LANES), element, name=SUMS, attrs=LEFT_ALONE)
