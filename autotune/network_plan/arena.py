"""Places of buffers in one memory, for an order of steps that is fixed.

`graph/one_arena.py` asks for them for a library, and `export/writing/planned_network.py` for C++ source.

To find the smallest memory is NP-hard. Placing the largest buffers first, each as low as it can be, is close to it in
most cases: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), section 5.2. So that
is tried in some orders, and in others that follow from what went wrong: what ends up on top is placed earlier.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

ALIGNMENT = 64  # bytes: what kernels expect of a buffer
_REPAIRS = 50  # of an order, at most
_PLACINGS = 100_000  # of buffers, in all repairs of an order: those of a network of thousands of kernels take seconds


@dataclass(frozen=True)
class BufferLife:
    """The size of a buffer, and when it is in use.

    Attributes:
        first: The number of the first block that uses it.
        last: The number of the last block that uses it.
    """

    bytes: int
    first: int
    last: int


Tensor = TypeVar("Tensor", bound=Hashable)
FOR_EVER = 1 << 60  # the number of a block that comes after all others


class Lifetimes(Generic[Tensor]):
    """When the memory of each tensor of a network is in use, as its blocks are read one after the other.

    Several tensors may lie in one memory: that of the tensor that it was allocated for. What lies elsewhere, such as a
    constant, is not known here.
    """

    def __init__(self) -> None:
        self._bytes: dict[Tensor, int] = {}
        self._owner: dict[Tensor, Tensor] = {}
        self._used: dict[Tensor, tuple[int, int]] = {}

    def allocate(self, tensor: Tensor, bytes: int) -> None:
        """Give a tensor memory of its own, of so many bytes."""
        self._bytes[tensor] = bytes
        self._owner[tensor] = tensor

    def share(self, tensor: Tensor, other: Tensor) -> None:
        """Let a tensor lie in the memory of another one, if that one's is known."""
        if other in self._owner:
            self._owner[tensor] = self._owner[other]

    def use(self, tensor: Tensor, block: int) -> None:
        """Note that a block reads or writes a tensor."""
        owner = self._owner.get(tensor)
        if owner is not None:
            first, last = self._used.get(owner, (block, block))
            self._used[owner] = min(first, block), max(last, block)

    def owner(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor in whose memory another one lies; None if it lies elsewhere."""
        return self._owner.get(tensor)

    def lives(self, *, unused: bool = False) -> dict[Tensor, BufferLife]:
        """Return when each memory is in use, by its tensor, in the order in which they were allocated.

        Args:
            unused: Whether those are returned, too, that nothing uses, as if the first block did.
        """
        return {
            tensor: BufferLife(size, *self._used.get(tensor, (0, 0)))
            for tensor, size in self._bytes.items()
            if unused or tensor in self._used
        }


# In which order buffers are placed, lowest first.
_ORDERS: tuple[Callable[[BufferLife], tuple[int, ...]], ...] = (
    lambda life: (-life.bytes,),
    lambda life: (life.first, -life.bytes),
    lambda life: (life.first - life.last, -life.bytes),
    lambda life: (-life.bytes * (life.last - life.first + 1),),
)


def place(buffers: Sequence[BufferLife], own: int = 0) -> tuple[list[int], int]:
    """Give each buffer a place that is free for as long as it is in use, in a memory that is as small as can be found.

    Args:
        own: How many of them, from the first, lie one after another where the memory begins. These places and the rest
            may be memories of their own, so no buffer lies in two of them.

    Returns:
        The offset of each buffer, and the size of the memory. All are multiples of `ALIGNMENT`.
    """
    walls = list(itertools.accumulate((aligned(life.bytes) for life in buffers[:own]), initial=0))
    if own == len(buffers):
        return walls[:own], walls[own]
    least = max(peak(buffers), walls[own])
    shared = _smallest(buffers, walls, least)
    if not own or shared[1] <= least:
        return shared
    always = [replace(life, first=0) for life in buffers[:own]]  # what lies in their places early may leave holes
    return min(shared, _smallest([*always, *buffers[own:]], walls, least), key=lambda result: result[1])


def _smallest(buffers: Sequence[BufferLife], walls: Sequence[int], least: int) -> tuple[list[int], int]:
    """Place buffers in several orders, until the memory is as small as it can be."""
    numbers = range(len(walls) - 1, len(buffers))
    ground = _Ground(buffers, walls)
    best: tuple[int, list[int]] | None = None
    for key in _ORDERS:
        order = sorted(numbers, key=lambda number: key(buffers[number]))
        for _ in range(max(1, min(_REPAIRS, _PLACINGS // max(1, len(buffers))))):
            offsets = ground.place(order)
            ends = list(map(operator.add, offsets, ground.sizes))
            size = max(ends, default=0)
            if best is None or size < best[0]:
                best = (size, offsets)
            if size <= least:
                return offsets, size
            top = next((number for number in numbers if ends[number] == size), None)
            if top in (None, order[0]):
                break
            order.insert(max(0, order.index(top) // 2), order.pop(order.index(top)))
    assert best is not None
    return best[1], best[0]


class _Ground:
    """Where buffers are placed, the first of them between walls.

    Args:
        buffers: The buffers.
        walls: Where each of the first ones begins, and where the last of these ends.

    Attributes:
        sizes: That of each buffer.
    """

    def __init__(self, buffers: Sequence[BufferLife], walls: Sequence[int]) -> None:
        begins = sorted({life.first for life in buffers})  # of two in use at once, one begins while the other is
        self.sizes = [aligned(life.bytes) for life in buffers]
        self._moments = [(bisect_left(begins, life.first), bisect_right(begins, life.last)) for life in buffers]
        self._walls = walls
        self._borders = {(wall, wall) for wall in walls[1:]}
        self._count = len(begins)

    def place(self, order: Sequence[int]) -> list[int]:
        """Place buffers one after the other, each as low as it can be, and return the offsets of all."""
        offsets = [*self._walls[:-1], *[0] * len(order)]
        in_use: list[list[tuple[int, int]]] = [[] for _ in range(self._count)]  # what is taken where a buffer begins
        for index in (*range(len(self._walls) - 1), *order):
            size = self.sizes[index]
            moments = in_use[slice(*self._moments[index])]
            if index >= len(self._walls) - 1:
                offsets[index] = _lowest(size, sorted(self._borders.union(*moments)))
            for taken in moments:
                taken.append((offsets[index], offsets[index] + size))
        return offsets


def _lowest(size: int, taken: Sequence[tuple[int, int]]) -> int:
    """Return the lowest offset at which so many bytes are free. What is taken is sorted."""
    offset = 0
    for start, end in taken:
        if offset + size <= start:
            break
        offset = max(offset, end)
    return offset


def peak(buffers: Sequence[BufferLife]) -> int:
    """Return the bytes of the buffers that are in use at once, at most: no memory can be smaller."""
    begins = [(life.first, aligned(life.bytes)) for life in buffers]
    ends = [(life.last + 1, -aligned(life.bytes)) for life in buffers]
    alive = most = 0
    for _, bytes in sorted(begins + ends):  # of one moment, what ends comes first
        alive += bytes
        most = max(most, alive)
    return most


def aligned(size: int) -> int:
    """Round a size up to a multiple of `ALIGNMENT`, and to one at least."""
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT
