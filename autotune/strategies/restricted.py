"""A design space of which not every configuration is allowed, as restrictions say.

Strategies draw and walk in it as in any space, and get configurations that are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.strategies.space import Configuration, Indices, Space, as_tuples

Allows = Callable[[Indices], npt.NDArray[np.bool_]]
# Draws in a row of which none has to be allowed, and steps that are tried from each configuration.
_DRAWS = 64
_STEPS = 8


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
        """Set one knob of each configuration to another value so that it is allowed, where eight draws bring one."""
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


class Table:
    """Tells whether configurations are among some. It compares hashes first, and then the rows."""

    def __init__(self, rows: Indices) -> None:
        weights = np.random.default_rng(0).integers(1, 2**63, size=rows.shape[1], dtype=np.uint64)
        self._weights = weights | np.uint64(1)
        hashes = self._hashes(rows)
        order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[order]
        self._rows = rows[order]

    def _hashes(self, rows: Indices) -> npt.NDArray[np.uint64]:
        return np.asarray((rows.astype(np.uint64) * self._weights).sum(axis=1, dtype=np.uint64))

    def __call__(self, rows: Indices) -> npt.NDArray[np.bool_]:
        """Return which of some rows are there, [n, knobs] to [n]."""
        if not len(self._rows):
            return np.zeros(len(rows), dtype=bool)
        places = np.minimum(np.searchsorted(self._sorted, self._hashes(rows)), len(self._rows) - 1)
        return np.asarray((self._rows[places] == rows).all(axis=1))
