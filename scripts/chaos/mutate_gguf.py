"""Small language models in GGUF files, and what may go wrong in such a file. For `fuzz_formats.py`."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutate_formats import Rng, Seed, spoilt

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.gguf_files import decoder

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of numbers, by their type
_TEXT, _LIST = 8, 9
_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1)
_FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e-38, 3e38)
_TEXTS = (
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\0",
    b"",
    b"a" * 5000,
    b"two\nlines\x1b[2J",
    b"general.architecture",
    b"llama",
)


@dataclass(frozen=True)
class Place:
    """Where a number or a text is in a file: its first byte, how many it has, and the length that a text follows."""

    start: int
    size: int
    is_text: bool = False


def places(data: bytes) -> Iterator[Place]:
    """Yield the numbers and the texts of a sound file, up to its tensors' bytes."""
    reader = _Reader(data)
    tensors, pairs = (reader.number(8) for _ in range(2))
    for _ in range(pairs):
        reader.text()
        reader.value(reader.number(4))
    for _ in range(tensors):
        reader.text()
        for _ in range(reader.number(4)):
            reader.number(8)
        reader.number(4)
        reader.number(8)
    yield from reader.seen


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 8
        self.seen = [Place(4, 4)]

    def number(self, size: int) -> int:
        self.seen.append(Place(self._at, size))
        self._at += size
        return int.from_bytes(self._data[self._at - size : self._at], "little")

    def text(self) -> None:
        size = self.number(8)
        self.seen.append(Place(self._at, size, is_text=True))
        self._at += size

    def value(self, kind: int) -> None:
        if kind == _TEXT:
            self.text()
        elif kind == _LIST:
            item, count = self.number(4), self.number(8)
            for _ in range(count):
                self.value(item)
        else:
            self.number(_SIZES[kind])


def of_gguf(seed: bytes, rng: Rng) -> bytes:
    """The bytes of a file with one to four things wrong: in what it says or, a fourth, in any of its bytes."""
    if rng.random() < 1 / 4:
        return spoilt(seed, rng)
    known = list(places(seed))
    changes = sorted((known[rng.integers(len(known))] for _ in range(rng.integers(1, 5))), key=lambda item: -item.start)
    data = seed
    for place in changes:  # the last first, for a text may change where those after it are
        data = _changed(data, place, known[rng.integers(len(known))], rng)
    return data[: rng.integers(len(data))] if rng.random() < 1 / 20 else data


def _changed(data: bytes, place: Place, other: Place, rng: Rng) -> bytes:
    """The file with another number or text at a place, of which a third is what stands elsewhere."""
    old = data[place.start : place.start + place.size]
    if rng.random() < 1 / 3:
        new = data[other.start : other.start + other.size]
    elif place.is_text:
        new = _TEXTS[rng.integers(len(_TEXTS))]
    elif place.size == 4 and rng.random() < 1 / 4:
        new = struct.pack("<f", _FLOATS[rng.integers(len(_FLOATS))])
    elif rng.random() < 1 / 3:
        new = (int.from_bytes(old, "little") + int(rng.integers(-32, 33))).to_bytes(16, "little", signed=True)
    else:
        new = _NUMBERS[rng.integers(len(_NUMBERS))].to_bytes(8, "little")
    if not place.is_text:
        return data[: place.start] + new.ljust(place.size, b"\0")[: place.size] + data[place.start + place.size :]
    said = len(new) if rng.random() < 3 / 4 else int(rng.integers(1 << 16))
    return data[: place.start - 8] + struct.pack("<Q", said) + new + data[place.start + place.size :]


def gguf_seeds() -> list[Seed]:
    """Small sound decoders, one of each architecture, in several formats of elements."""
    formats = {
        "llama": ("Q4_1", "Q8_0"),
        "qwen2": ("Q4_0", "F16"),
        "qwen3": ("Q5_1", "F32"),
        "gemma3": ("Q4_K", "Q6_K"),
    }
    widths = {"gemma3": (256, 256)}
    made = []
    for name, kinds in formats.items():
        width, inner = widths.get(name, (64, 96))
        head = width // 4 if "K" in kinds[0] else 32
        made.append(decoder(name, kinds, layers=1, vocabulary=64, width=width, inner=inner, head=head))
    return [Seed(file.encoded()) for file in made]
