"""Inputs of a size between the tuned ones are padded with zeros to the next of them, and outputs are cut back.

An output that has as many rows as the data say is cut to the count that the library puts out for it. That is the size
of a dimension, too: its name is that of the count.

The `dims` of an input or an output are the names of its dimensions that are open, and an empty text for each other.
`run.py`, which an export writes, has the source of these functions in it; C++ has its own in `writing/cpp/shapes.h`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]  # of inputs by name
Dims = Mapping[str, Sequence[str]]


def pick_entry(entries: Mapping[str, Shapes], given: Shapes, dims: Dims) -> str:
    """Return the name of the entry for inputs of these shapes: that which has them, or the smallest for them padded.

    Args:
        entries: The shape of each input by its name, by the name of the entry.
        given: The shape of each input by its name.
        dims: The dimensions of the inputs that may be padded.

    Raises:
        ValueError: No entry takes them. The message says what there is.
    """
    for entry, shapes in entries.items():
        if shapes == given:
            return entry
    check_sizes(entries, given, dims)
    fitting = [
        entry
        for entry, shapes in entries.items()
        if all(fits(given[name], shapes[name], dims.get(name, ())) for name in given)
    ]
    if fitting:
        return min(fitting, key=lambda entry: elements(entries[entry]))
    nowhere = [name for name in given if all(shapes[name] != given[name] for shapes in entries.values())]
    told = nowhere[:1] or list(given)

    def written(shapes: Shapes) -> list[str]:
        return ["x".join(map(str, shapes[name])) or "scalar" for name in told]

    asked = " with ".join(f"{name} of {shape}" for name, shape in zip(told, written(given), strict=True))
    there = dict.fromkeys(" with ".join(written(shapes)) for shapes in entries.values())
    raise ValueError(f"no entry for {asked}: this export has {', '.join(there)}")


def check_sizes(entries: Mapping[str, Shapes], given: Shapes, dims: Dims) -> None:
    """Check that inputs agree on the size of each open dimension, and that one of the entries is as large.

    The arguments are those of `pick_entry`.

    Raises:
        ValueError: They do not, or there is no such entry. The message names both inputs, or the largest size.
    """
    seen: dict[str, tuple[str, int]] = {}
    for name, shape in given.items():
        names = dims.get(name, ())
        for axis, (dim, size) in enumerate(zip(names, shape, strict=True) if len(names) == len(shape) else ()):
            first, before = seen.setdefault(dim, (name, size))
            largest = max(shapes[name][axis] for shapes in entries.values())
            if dim and size != before:
                raise ValueError(f"{dim} is {before} in {first} and {size} in {name}")
            if dim and not 1 <= size <= largest:
                raise ValueError(f"{dim} is {size} in {name}; this library takes 1 to {largest}")


def fits(shape: tuple[int, ...], wanted: tuple[int, ...], dims: Sequence[str]) -> bool:
    """Return whether an array has the wanted shape, or does when its open dimensions are padded."""
    names = dims or [""] * len(wanted)
    return len(shape) == len(wanted) and all(
        size == most or (dim and size <= most) for size, most, dim in zip(shape, wanted, names, strict=True)
    )


def elements(shapes: Shapes) -> int:
    """Return how many elements inputs of these shapes have."""
    return sum(map(math.prod, shapes.values()))


def sizes_of(given: Shapes, dims: Dims) -> dict[str, int]:
    """Return the size of each open dimension in inputs of these shapes."""
    return {dim: size for name in given for dim, size in zip(dims.get(name, ()), given[name], strict=False) if dim}


def split_counts(outputs: Sequence[Array], names: Sequence[str]) -> tuple[list[Array], dict[str, int]]:
    """Return the outputs of a model, and the counts by name, which a library puts out after them."""
    own = len(outputs) - len(names)
    return list(outputs[:own]), {name: int(count) for name, count in zip(names, outputs[own:], strict=True)}


def padded(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an array with zeros at the ends of its dimensions, as far as it has not the shape as it is."""
    if array.shape == shape:
        return array
    whole = np.zeros(shape, array.dtype)
    whole[tuple(map(slice, array.shape))] = array
    return whole


def cut(output: Array, dims: Sequence[str], sizes: Mapping[str, int]) -> Array:
    """Return an output without what is beyond these sizes of its open dimensions."""
    part = output[tuple(slice(sizes.get(dim)) for dim in dims)]
    return output if part.shape == output.shape else np.ascontiguousarray(part)
