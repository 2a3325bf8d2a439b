"""Permutations of the rows of attention heads: they move whole vectors, or squares of vectors that they transpose.

A tensor of heads has shape (B, R, H, D): of each image and row the elements of each head. It becomes (B, H, R, D), or
(B, H, D, R) where rows and elements are exchanged.

Element by element an exchange reads one float of every line of the cache that it touches. Here a square of sixteen
vectors is transposed in registers, in four steps of shuffles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE, from_float
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.programs import finished
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc

_FLOAT = "float32"
_PAIR = 2
_PARALLEL_FROM = 4096  # elements; fewer are done before other threads have begun


@dataclass(frozen=True)
class Heads:
    """A permutation of the rows of heads; R and D are whole vectors where it exchanges them, and else D is.

    Attributes:
        images, rows, heads, elements: The extents B, R, H and D of what is permuted.
        exchanged: Whether the result is (B, H, D, R), and not (B, H, R, D).
    """

    images: int
    rows: int
    heads: int
    elements: int
    exchanged: bool

    @classmethod
    def of(cls, shape: Sequence[int], axes: Sequence[int]) -> Heads | None:
        """Return what a permutation of a tensor of this shape is; None if it is another, or not of whole vectors."""
        kept = len(shape) - 3
        if kept < 0 or list(axes[:kept]) != list(range(kept)):
            return None
        first, second, third = shape[kept:]
        images = prod(shape[:kept])
        moved: dict[tuple[int, ...], Heads] = {
            (0, 2, 1): cls(images * first, second, 1, third, True),
            (1, 2, 0): cls(images, first, second, third, True),
            (2, 0, 1): cls(images, first * second, 1, third, True),
            (1, 0, 2): cls(images, first, second, third, False),
        }
        heads = moved.get(tuple(axis - kept for axis in axes[kept:]))
        return heads if heads is not None and heads._is_whole else None

    @property
    def _is_whole(self) -> bool:
        return self.elements % LANES == 0 and (not self.exchanged or self.rows % LANES == 0)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """That of what is permuted."""
        return self.images, self.rows, self.heads, self.elements

    @property
    def result(self) -> tuple[int, int, int, int]:
        """The shape of the result."""
        last = (self.elements, self.rows) if self.exchanged else (self.rows, self.elements)
        return self.images, self.heads, *last


def permuted_program(heads: Heads, dtype: str = _FLOAT) -> PrimFunc:
    """Return the scheduled program of a permutation.

    Args:
        heads: The permutation, of float32.
        dtype: Of the result: float32 or that of bfloat16.
    """

    def store(result: Buffer, corner: _Corner, vectors: Sequence[PrimExpr]) -> None:
        for step, vector in enumerate(vectors):
            place = (corner.column + step, corner.row) if heads.exchanged else (corner.row + step, corner.column)
            written = from_float(vector) if dtype == DTYPE else vector
            T.buffer_store(result, written, [corner.image, corner.head, place[0], _along(place[1])])

    return _program(heads, heads.result, dtype, store)


def pairs_shape(heads: Heads) -> tuple[int, int, int, int]:
    """Return the shape of what `permuted_pairs_program` writes."""
    images, count, inner, columns = heads.result
    return images * count, columns // LANES, inner // _PAIR, _PAIR * LANES


def permuted_pairs_program(heads: Heads) -> PrimFunc:
    """Return the scheduled program of a permutation to matrices (K, N), packed as weights (B * H, N / 16, K / 2, 32).

    A vector of weights has sixteen columns of two rows of a matrix, in bfloat16. K is even, and N whole vectors.
    """

    def store(result: Buffer, corner: _Corner, vectors: Sequence[PrimExpr]) -> None:
        chunk, inner = (corner.row, corner.column) if heads.exchanged else (corner.column, corner.row)
        for pair in range(len(vectors) // _PAIR):
            place = [corner.image * heads.heads + corner.head, chunk // LANES, inner // _PAIR + pair]
            both = _interleaved(*vectors[pair * _PAIR : (pair + 1) * _PAIR])
            T.buffer_store(result, both, [*place, T.ramp(0, 1, _PAIR * LANES)])

    return _program(heads, pairs_shape(heads), DTYPE, store)


@dataclass(frozen=True)
class _Corner:
    """Where the first of some vectors lies in what is permuted."""

    image: PrimExpr
    row: PrimExpr
    head: PrimExpr
    column: PrimExpr


def _program(
    heads: Heads, shape: Sequence[int], dtype: str, store: Callable[[Buffer, _Corner, Sequence[PrimExpr]], None]
) -> PrimFunc:
    """The program whose threads share the vectors of a row, and go down the rows.

    Args:
        heads: The permutation.
        shape: Of the result.
        dtype: Of the result.
        store: Writes vectors: of rows, or of columns where they are exchanged.
    """
    chunks = heads.elements // LANES
    step = LANES if heads.exchanged else _PAIR - heads.rows % _PAIR
    loop = T.parallel if prod(heads.shape) >= _PARALLEL_FROM else T.serial
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"tirx.noalias": True})
        handles = [T.arg(name, T.handle()) for name in ("data", "result")]
        data = T.match_buffer(handles[0], heads.shape, _FLOAT)
        result = T.match_buffer(handles[1], tuple(shape), dtype)
        vectors = heads.images * heads.heads * chunks
        with T.sblock("root"), loop(0, vectors) as vector, T.serial(0, heads.rows // step) as part:
            place = vector // chunks
            corner = _Corner(place // heads.heads, part * step, place % heads.heads, vector % chunks * LANES)
            rows = [data[corner.image, corner.row + row, corner.head, _along(corner.column)] for row in range(step)]
            store(result, corner, transposed(rows) if heads.exchanged else rows)
    return finished(builder.get())


def _along(first: PrimExpr) -> PrimExpr:
    return T.ramp(first, 1, LANES)


def _interleaved(one: PrimExpr, other: PrimExpr) -> PrimExpr:
    order = [half * LANES + lane for lane in range(LANES) for half in range(_PAIR)]
    return _shuffled(from_float(one), from_float(other), order)


def transposed(rows: Sequence[PrimExpr]) -> list[PrimExpr]:
    """Return the columns of a square of vectors, whose side is a power of two.

    Each step exchanges blocks of half the size beside the diagonal.
    """
    vectors = list(rows)
    lanes = len(vectors)
    distance = lanes // 2
    while distance:
        for index in range(lanes):
            if not index & distance:
                pair = (vectors[index], vectors[index + distance])
                for part in range(2):
                    vectors[index + part * distance] = _half(*pair, lanes, distance, part)
        distance //= 2
    return vectors


def _half(one: PrimExpr, other: PrimExpr, lanes: int, distance: int, part: int) -> PrimExpr:
    """Blocks of so many lanes of two vectors by turns: the even blocks of both, or the odd ones."""
    shift = part * distance
    order = [lane - distance + shift + lanes if lane & distance else lane + shift for lane in range(lanes)]
    return _shuffled(one, other, order)


def _shuffled(one: PrimExpr, other: PrimExpr, order: Sequence[int]) -> PrimExpr:
    return tirx.Shuffle([one, other], [tirx.const(lane, "int32") for lane in order])
