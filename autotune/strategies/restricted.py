"""A design space of which not every configuration is allowed, as restrictions say.

Strategies draw and walk in it as in any space, and get configurations that are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autotune.strategies.space import Configuration, Indices, Space, as_tuples

Allows = Callable[[Indices], npt.NDArray[np.bool_]]
# Draws in a row of which none has to be allowed, and steps that are tried from each configuration.
_DRAWS = 64
_STEPS = 8
# Combinations of indices whose places are kept in an array.
_MAX_DENSE = 1 << 22
# Numbers in a list of configurations of which all neighbours are kept.
_MAX_IN_LINES = 1 << 20


@dataclass(frozen=True, eq=False)
class RestrictedSpace(Space):
    """A space with restrictions.

    Attributes:
        allows: Which of some configurations are allowed, [n, knobs] to [n].
        table: All that are allowed, [size, knobs]; None where they are too many to list.
    """

    allows: Allows
    table: Indices | None = None

    @property
    def size(self) -> int:
        """Number of configurations that are allowed; of all, where they are too many to list."""
        return super().size if self.table is None else len(self.table)

    def __iter__(self) -> Iterator[Configuration]:
        if self.table is not None:
            yield from as_tuples(self.table)
        else:
            yield from (row for row in super().__iter__() if self.allows(np.array([row]))[0])

    def sample(self, rng: np.random.Generator, count: int) -> Indices:
        """Draw uniformly of those that are allowed, up to `count`; fewer where they are rare. Repeats are possible."""
        if self.table is not None:
            if not len(self.table):
                return self.table
            return np.asarray(self.table[rng.integers(len(self.table), size=count)])
        drawn = np.empty((0, len(self.sizes)), dtype=np.int64)
        for _ in range(_DRAWS):
            rows = super().sample(rng, max(count, 1024))
            drawn = np.concatenate([drawn, rows[self.allows(rows)]])
            if len(drawn) >= count:
                break
        return drawn[:count]

    def walk(self, rng: np.random.Generator, configurations: Indices) -> Indices:
        """Set one knob of each configuration to another value so that it is allowed.

        In a short list all such values are known. Else eight draws have to bring one.
        """
        if self._lines is not None and (places := self._lines.table.places(configurations)).min(initial=0) >= 0:
            return self._lines.walk(rng, places)
        moved = super().walk(rng, configurations)
        wrong = np.flatnonzero(~self.allows(moved))
        for _ in range(_STEPS - 1):
            if not len(wrong):
                break
            again = super().walk(rng, configurations[wrong])
            allowed = self.allows(again)
            moved[wrong[allowed]] = again[allowed]
            wrong = wrong[~allowed]
        return moved

    def nearest(self, configuration: Indices) -> Indices:
        """Return the configurations that differ in one knob, by as little as is allowed, [n, knobs]."""
        places = self._lines.table.places(configuration[None]) if self._lines is not None else np.array([-1])
        if self._lines is not None and places[0] >= 0:
            return self._lines.nearest(int(places[0]))
        rows = super().nearest(configuration)
        return np.asarray(rows[self.allows(rows)])

    @cached_property
    def _lines(self) -> Lines | None:
        short = self.table is not None and 0 < self.table.size <= _MAX_IN_LINES
        return Lines(self.table) if short and self.table is not None else None


class Lines:
    """The lines of a list of configurations: those that differ in one knob only.

    Attributes:
        table: Tells the places of configurations in the list.
    """

    def __init__(self, rows: Indices) -> None:
        self.table = Table(rows)
        self._rows = rows
        shape = rows.shape
        self._members = np.empty(shape, dtype=np.int64)
        self._starts = np.empty(shape, dtype=np.int64)
        self._counts = np.empty(shape, dtype=np.int64)
        self._positions = np.empty(shape, dtype=np.int64)
        for knob in range(shape[1]):
            self._enter(knob)

    def _enter(self, knob: int) -> None:
        others = np.delete(self._rows, knob, axis=1)
        _, line = np.unique(others, axis=0, return_inverse=True)
        order = np.lexsort((self._rows[:, knob], line))
        counts = np.bincount(line)
        starts = np.cumsum(counts) - counts
        self._members[:, knob] = order
        self._starts[:, knob] = starts[line]
        self._counts[:, knob] = counts[line]
        self._positions[order, knob] = np.arange(len(order)) - starts[line[order]]

    def nearest(self, place: int) -> Indices:
        """Return the configurations beside a place on its lines, [n, knobs]."""
        beside = self._positions[place] + np.array([[1], [-1]])
        inside = (beside >= 0) & (beside < self._counts[place])
        members = np.where(inside, self._starts[place] + beside, 0)
        return np.asarray(self._rows[self._members[members, np.arange(self._rows.shape[1])][inside]])

    def walk(self, rng: np.random.Generator, places: Indices) -> Indices:
        """Draw a knob of which another value is allowed, and such a value, for each place; return configurations."""
        counts = self._counts[places]
        movable = counts > 1
        knobs = np.argmax(rng.random(counts.shape) * movable, axis=1)
        count = counts[np.arange(len(places)), knobs]
        shifted = self._positions[places, knobs] + rng.integers(1, np.maximum(count, 2))
        return np.asarray(self._rows[self._members[self._starts[places, knobs] + shifted % count, knobs]])


class Table:
    """Tells whether and where configurations are among some.

    Where the indices span few enough combinations, an array has the place of each. Else hashes are compared, and then
    the rows.
    """

    def __init__(self, rows: Indices) -> None:
        self._rows = rows
        self._sizes = rows.max(axis=0, initial=0) + 1
        span = math.prod(self._sizes.tolist())
        self._dense = span <= _MAX_DENSE
        if self._dense:
            self._weights = (span // np.cumprod(self._sizes)).astype(np.uint64)
            self._places = np.full(span, -1, dtype=np.int64)
            self._places[self._keys(rows)] = np.arange(len(rows))
        else:
            weights = np.random.default_rng(0).integers(1, 2**63, size=rows.shape[1], dtype=np.uint64)
            self._weights = weights | np.uint64(1)
            keys = self._keys(rows)
            self._order = np.argsort(keys, kind="stable")
            self._sorted = keys[self._order]

    def _keys(self, rows: Indices) -> npt.NDArray[np.uint64]:
        return np.asarray(rows.astype(np.uint64) @ self._weights)

    def places(self, rows: Indices) -> Indices:
        """Return the place of each of some rows, -1 for one that is not there, [n, knobs] to [n]."""
        if self._dense:
            inside = ((rows >= 0) & (rows < self._sizes)).all(axis=1)
            return np.where(inside, self._places[np.where(inside, self._keys(rows), 0)], -1)
        places = self._order[np.minimum(np.searchsorted(self._sorted, self._keys(rows)), len(self._rows) - 1)]
        return np.where((self._rows[places] == rows).all(axis=1), places, -1)

    def __call__(self, rows: Indices) -> npt.NDArray[np.bool_]:
        """Return which of some rows are there, [n, knobs] to [n]."""
        return self.places(rows) >= 0
