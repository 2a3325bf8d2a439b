"""How elements of tensors are stored in a GGUF file: as floats, or in blocks of few bits.

Whatever the format, an element of a block is scale * code + offset, where the code is an unsigned integer of `bits`
bits. Blocks lie along the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
_SUPER = 256  # elements of a block of the K formats
_PARTS = 8  # of such a block, which have scales of their own in Q4_K and Q5_K


@dataclass(frozen=True)
class Blocks:
    """Rows of elements in blocks: element = scale * code + offset.

    Attributes:
        codes: Unsigned integers, (rows, columns).
        scale: Floats (rows, blocks).
        offset: Floats (rows, blocks); None where it is -zero * scale.
        zero: The code that stands for 0, where there is no offset.
    """

    codes: Bytes
    scale: Array
    offset: Array | None
    zero: int
    bits: int

    @property
    def block(self) -> int:
        """Elements of a block."""
        return int(self.codes.shape[1] // self.scale.shape[1])

    def floats(self) -> npt.NDArray[np.float32]:
        """Return the elements in float32."""
        rows, blocks = self.scale.shape
        values = self.codes.reshape(rows, blocks, -1).astype(np.float32)
        if self.offset is None:
            values -= np.float32(self.zero)
        values *= self.scale.astype(np.float32)[:, :, None]
        if self.offset is not None:
            values += self.offset.astype(np.float32)[:, :, None]
        return values.reshape(rows, -1)


@dataclass(frozen=True)
class ElementFormat:
    """How elements are stored.

    Attributes:
        name: What llama.cpp calls it.
        elements: How many of them are stored together.
        bytes: What these take.
        unpack: Makes blocks of rows of bytes; None for floats.
        floats: Makes float32 of rows of bytes, where they are stored as floats.
    """

    name: str
    elements: int
    bytes: int
    unpack: Callable[[Bytes], Blocks] | None = None
    floats: Callable[[Bytes], Array] | None = None

    def to_floats(self, rows: Bytes) -> npt.NDArray[np.float32]:
        """Return rows of bytes as rows of float32."""
        if self.floats is not None:
            return np.asarray(self.floats(rows), np.float32)
        assert self.unpack is not None
        return self.unpack(rows).floats()


def _bfloat16(rows: Bytes) -> Array:
    return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _cut(rows: Bytes, *sizes: int) -> list[Bytes]:
    """The parts of all blocks of rows: (rows, blocks, size) each."""
    blocks = rows.reshape(len(rows), -1, sum(sizes))
    ends = np.cumsum(sizes)
    return [np.ascontiguousarray(blocks[..., end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def _half(part: Bytes) -> Array:
    """Float16 numbers, one for each block."""
    return part.view(np.float16)[..., 0]


def _nibbles(part: Bytes) -> Bytes:
    """The lower halves of all bytes of a block, and then the upper ones."""
    return np.concatenate([part & 15, part >> 4], axis=-1)


def _flat(codes: Array) -> Bytes:
    return np.ascontiguousarray(codes.reshape(len(codes), -1), np.uint8)


def _fifth_bits(part: Bytes) -> Bytes:
    """A bit for each of 32 elements, moved to where it stands for 16."""
    bits: Bytes = np.unpackbits(part, axis=-1, bitorder="little")
    return np.asarray(bits << 4, np.uint8)


def _q4_0(rows: Bytes) -> Blocks:
    scale, codes = _cut(rows, 2, 16)
    return Blocks(_flat(_nibbles(codes)), _half(scale), None, 8, 4)


def _q4_1(rows: Bytes) -> Blocks:
    scale, offset, codes = _cut(rows, 2, 2, 16)
    return Blocks(_flat(_nibbles(codes)), _half(scale), _half(offset), 0, 4)


def _q5_0(rows: Bytes) -> Blocks:
    scale, high, codes = _cut(rows, 2, 4, 16)
    return Blocks(_flat(_nibbles(codes) | _fifth_bits(high)), _half(scale), None, 16, 5)


def _q5_1(rows: Bytes) -> Blocks:
    scale, offset, high, codes = _cut(rows, 2, 2, 4, 16)
    return Blocks(_flat(_nibbles(codes) | _fifth_bits(high)), _half(scale), _half(offset), 0, 5)


def _q8_0(rows: Bytes) -> Blocks:
    scale, codes = _cut(rows, 2, 32)
    return Blocks(_flat(codes ^ 128), _half(scale), None, 128, 8)


def _scales_and_offsets(first: Bytes, second: Bytes, packed: Bytes) -> tuple[Array, Array]:
    """Those of the eight parts of each block of Q4_K and Q5_K: 6 bits each, times a number of the block."""
    low, high, rest = np.split(packed, 3, axis=-1)
    scale = np.concatenate([low & 63, (rest & 15) | (low >> 6 << 4)], axis=-1)
    offset = np.concatenate([high & 63, (rest >> 4) | (high >> 6 << 4)], axis=-1)
    steps = (_half(part).astype(np.float32)[..., None] for part in (first, second))
    scales, offsets = (step * part for step, part in zip(steps, (scale, offset), strict=True))
    return scales.reshape(len(packed), -1), -offsets.reshape(len(packed), -1)


def _by_pairs(part: Bytes) -> Bytes:
    """128 bytes of a block as 256 elements: 32 lower halves, the 32 upper ones of the same bytes, and so on."""
    return _nibbles(part.reshape(*part.shape[:-1], 4, 32)).reshape(*part.shape[:-1], _SUPER)


def _q4_k(rows: Bytes) -> Blocks:
    first, second, packed, codes = _cut(rows, 2, 2, 12, 128)
    return Blocks(_flat(_by_pairs(codes)), *_scales_and_offsets(first, second, packed), 0, 4)


def _q5_k(rows: Bytes) -> Blocks:
    first, second, packed, high, codes = _cut(rows, 2, 2, 12, 32, 128)
    places = np.arange(_PARTS, dtype=np.uint8)[:, None]
    fifth = (high[..., None, :] >> places & 1) << 4
    five = _by_pairs(codes) | fifth.reshape(*codes.shape[:-1], _SUPER)
    return Blocks(_flat(five), *_scales_and_offsets(first, second, packed), 0, 5)


def _q6_k(rows: Bytes) -> Blocks:
    low, high, scales, scale = _cut(rows, 128, 64, 16, 2)
    halves = low.reshape(*low.shape[:-1], 2, 64)
    four = np.concatenate([halves & 15, halves >> 4], axis=-1)
    places = np.array([0, 2, 4, 6], np.uint8)[:, None]
    two = high.reshape(*high.shape[:-1], 2, 1, 32) >> places & 3
    codes = four.reshape(*low.shape[:-1], _SUPER) | (two.reshape(*low.shape[:-1], _SUPER) << 4)
    products = _half(scale).astype(np.float32)[..., None] * scales.view(np.int8)
    return Blocks(_flat(codes), products.reshape(len(rows), -1), None, 32, 6)


FORMATS: Mapping[int, ElementFormat] = {
    0: ElementFormat("F32", 1, 4, floats=lambda rows: rows.view(np.float32)),
    1: ElementFormat("F16", 1, 2, floats=lambda rows: rows.view(np.float16)),
    2: ElementFormat("Q4_0", 32, 18, _q4_0),
    3: ElementFormat("Q4_1", 32, 20, _q4_1),
    6: ElementFormat("Q5_0", 32, 22, _q5_0),
    7: ElementFormat("Q5_1", 32, 24, _q5_1),
    8: ElementFormat("Q8_0", 32, 34, _q8_0),
    12: ElementFormat("Q4_K", _SUPER, 144, _q4_k),
    13: ElementFormat("Q5_K", _SUPER, 176, _q5_k),
    14: ElementFormat("Q6_K", _SUPER, 210, _q6_k),
    30: ElementFormat("BF16", 1, 2, floats=_bfloat16),
}
