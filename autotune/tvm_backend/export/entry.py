"""Pick the entry of an exported library for inputs of some shapes, and check indices before they are looked up.

`run.py` has the source of these functions in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def pick_entry(entries: Mapping[str, Mapping[str, tuple[int, ...]]], given: Mapping[str, tuple[int, ...]]) -> str:
    """Return the name of the entry that takes inputs of these shapes.

    Args:
        entries: The shape of each input by its name, by the name of the entry.
        given: The shape of each input by its name.

    Raises:
        ValueError: No entry takes them. The message says what there is.
    """
    for entry, shapes in entries.items():
        if shapes == given:
            return entry
    nowhere = [name for name in given if all(shapes[name] != given[name] for shapes in entries.values())]
    told = nowhere[:1] or list(given)

    def written(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        return ["x".join(map(str, shapes[name])) or "scalar" for name in told]

    asked = " with ".join(f"{name} of {shape}" for name, shape in zip(told, written(given), strict=True))
    there = dict.fromkeys(" with ".join(written(shapes)) for shapes in entries.values())
    raise ValueError(f"no entry for {asked}: this export has {', '.join(there)}")


def check_index(name: str, array: Any, rows: int) -> None:
    """Check that a table has the rows that an input names: a kernel would read elsewhere, or crash.

    The C++ programs have the same check.

    Args:
        name: The name of the input.
        array: The input, a NumPy array. Of other numbers than integers the model takes the whole part.
        rows: How many rows the table has.

    Raises:
        ValueError: It lacks one of them.
    """
    if not array.size:
        return
    indices = array.astype("int64", copy=False)
    outermost = indices.min() if indices.min() < 0 else indices.max()
    if not 0 <= outermost < rows:
        raise ValueError(f"input '{name}' has the index {outermost}; its table has {rows} rows, counted from 0")
