"""The places in nested lists and mappings, for what mutates them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Place = list[int | str]


def places(value: Any, above: Sequence[int | str] = ()) -> Iterator[Place]:
    """Yield the place of each value in nested lists and mappings, as the keys that lead there."""
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    for key in keys:
        place = [*above, key]
        yield place
        yield from places(value[key], place)


def value_at(value: Any, place: Sequence[int | str]) -> Any:
    """Return what stands at a place."""
    for key in place:
        value = value[key]
    return value
