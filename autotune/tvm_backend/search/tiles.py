"""The values of a SamplePerfectTile instruction: every way to write a loop's extent as a product of factors."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

Tile = tuple[int, ...]


def tiles(trace: Any, instruction: Any) -> tuple[Tile, ...]:
    """Return every tile that TVM can draw for a SamplePerfectTile instruction, the smallest innermost factor first.

    A loop whose extent is not known is not tiled: the decision in the trace is its only value.
    """
    decision = tuple(int(factor) for factor in trace.get_decision(instruction))
    extent = math.prod(decision)
    if extent < 1:
        return (decision,)
    parts, innermost = (int(attribute) for attribute in instruction.attrs)
    return tuple(sorted(factorisations(extent, parts, innermost), key=lambda tile: tile[::-1]))


@lru_cache(maxsize=4096)
def factorisations(extent: int, parts: int, innermost: int) -> tuple[Tile, ...]:
    """Return all ordered ways to write `extent` as a product of `parts` factors.

    Args:
        innermost: Largest value of the last factor. -1 means no limit, as TVM's rules say it with
            `max_innermost_factor=None`.
    """
    if parts == 1:
        return ((extent,),) if innermost < 0 or extent <= innermost else ()
    last = (factor for factor in _divisors(extent) if innermost < 0 or factor <= innermost)
    return tuple((*rest, factor) for factor in last for rest in factorisations(extent // factor, parts - 1, -1))


def _divisors(number: int) -> list[int]:
    """Return the divisors, in ascending order."""
    small = [factor for factor in range(1, math.isqrt(number) + 1) if number % factor == 0]
    large = [number // factor for factor in reversed(small) if factor * factor != number]
    return small + large
