"""Give buffers places in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # what kernels expect of a buffer


@dataclass(frozen=True)
class BufferLife:
    """The size of a buffer, and when it is in use.

    Attributes:
        bytes: Its size.
        first: The number of the first block that uses it.
        last: The number of the last block that uses it.
    """

    bytes: int
    first: int
    last: int

    def overlaps(self, other: BufferLife) -> bool:
        """Return whether both are in use while some block runs."""
        return self.first <= other.last and other.first <= self.last


def place(buffers: Sequence[BufferLife]) -> tuple[list[int], int]:
    """Give each buffer the lowest place that is free for as long as it is in use, the largest buffer first.

    Args:
        buffers: The buffers.

    Returns:
        The offset of each buffer, and the size of the memory. All are multiples of `ALIGNMENT`.
    """
    offsets: dict[int, int] = {}
    for index in sorted(range(len(buffers)), key=lambda number: -buffers[number].bytes):
        taken = sorted(
            (offsets[other], offsets[other] + aligned(buffers[other].bytes))
            for other in offsets
            if buffers[other].overlaps(buffers[index])
        )
        offset = 0
        for start, end in taken:
            if offset + aligned(buffers[index].bytes) <= start:
                break
            offset = max(offset, end)
        offsets[index] = offset
    ends = (offset + aligned(buffers[index].bytes) for index, offset in offsets.items())
    return [offsets[index] for index in range(len(buffers))], max(ends, default=0)


def aligned(size: int) -> int:
    """Round a size up to a multiple of `ALIGNMENT`, and to one at least."""
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT
