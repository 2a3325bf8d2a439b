"""What a strategy sees of a task: its design space, the trials so far, and two ways to judge configurations.

A design space has knobs with ordered values. A configuration is one index for each knob. The first knob is the sketch.
A sketch uses some of the knobs. The others are 0 in all its configurations, so that every configuration has one form
only. Two sketches may share a knob.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Configuration = tuple[int, ...]
Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Knob:
    """One decision. `values` are ordered so that neighbours are similar; only the back end knows what they mean."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Space:
    """Knobs, the sketch first, and which of them each sketch uses.

    Attributes:
        used: `used[sketch][knob]`; always true for knob 0, the sketch itself.
    """

    knobs: tuple[Knob, ...]
    used: tuple[tuple[bool, ...], ...]

    @cached_property
    def sizes(self) -> Indices:
        """Number of values of each knob, [knobs]."""
        return np.array([len(knob.values) for knob in self.knobs], dtype=np.int64)

    @cached_property
    def mask(self) -> npt.NDArray[np.bool_]:
        """`used` as an array, [sketches, knobs]."""
        return np.array(self.used, dtype=bool)

    @property
    def size(self) -> int:
        """Number of configurations, valid or not."""
        return sum(math.prod(sizes) for sizes in self._sizes_by_sketch())

    def __contains__(self, configuration: Sequence[int]) -> bool:
        row = np.asarray(configuration, dtype=np.int64)
        return row.shape == self.sizes.shape and bool(np.array_equal(self.clip(row[None])[0], row))

    def __iter__(self) -> Iterator[Configuration]:
        """Yield every configuration, sketch by sketch. Use it for small spaces only."""
        for sketch, sizes in enumerate(self._sizes_by_sketch()):
            for rest in itertools.product(*map(range, sizes[1:])):
                yield (sketch, *rest)

    def _sizes_by_sketch(self) -> list[list[int]]:
        sizes = self.sizes.tolist()
        return [[1, *(n if u else 1 for n, u in zip(sizes[1:], used[1:], strict=True))] for used in self.used]

    def clip(self, configurations: Indices) -> Indices:
        """Return the nearest configurations of the space, [n, knobs]: indices in range, unused knobs 0."""
        inside = np.clip(configurations, 0, self.sizes - 1)
        return np.asarray(inside * self.mask[inside[:, 0]], dtype=np.int64)

    def sample(self, rng: np.random.Generator, count: int) -> Indices:
        """Draw uniformly over sketches, then over the values of each knob, [count, knobs]. Repeats are possible."""
        return self.clip(rng.integers(0, self.sizes, size=(count, len(self.sizes))))

    def walk(self, rng: np.random.Generator, configurations: Indices) -> Indices:
        """Set one knob of each configuration to another value, both drawn at random, [n, knobs]."""
        movable = self.mask[configurations[:, 0]] & (self.sizes > 1)
        moved = configurations.copy()
        rows = np.flatnonzero(movable.any(axis=1))
        knobs = np.argmax(rng.random(movable.shape) * movable, axis=1)[rows]
        shift = rng.integers(1, np.maximum(self.sizes[knobs], 2))
        moved[rows, knobs] = (moved[rows, knobs] + shift) % self.sizes[knobs]
        return self.clip(moved)

    def nearest(self, configuration: Indices) -> Indices:
        """Return all configurations that differ from one in one knob by one value, [n, knobs]."""
        steps = np.eye(len(configuration), dtype=np.int64)
        moved = self.clip(np.concatenate([configuration + steps, configuration - steps]))
        return np.asarray(moved[(moved != configuration).any(axis=1)])

    def coordinates(self, configurations: Indices) -> Floats:
        """Return positions in the unit cube, [n, knobs]: each index over the largest index of its knob."""
        return np.asarray(configurations / np.maximum(self.sizes - 1, 1), dtype=np.float64)


def as_array(configurations: Iterable[Sequence[int]], knobs: int) -> Indices:
    """Return configurations as rows, [n, knobs], also when there are none."""
    return np.array(list(configurations), dtype=np.int64).reshape(-1, knobs)


def as_tuples(configurations: Indices) -> list[Configuration]:
    """Return rows as configurations, which can be compared and kept in sets."""
    return [tuple(row) for row in configurations.tolist()]


@dataclass(frozen=True)
class Measured:
    """A trial: a configuration and the median of its times in microseconds; None when it failed."""

    configuration: Configuration
    median_us: float | None


@dataclass(frozen=True)
class ValidConfiguration:
    """A configuration that can be measured.

    Attributes:
        configuration: The one that was asked for, or another one that gives the same program.
        score: The cost model's estimate of its relative throughput; None where there is no cost model.
    """

    configuration: Configuration
    score: float | None


Score = Callable[[Indices], Floats]
Validate = Callable[[Sequence[Configuration]], "list[ValidConfiguration | None]"]


@dataclass(frozen=True)
class View:
    """All that a strategy sees of a task.

    Attributes:
        space: The knobs.
        trials: Everything measured so far, oldest first, failures included.
        score: A cheap estimate of relative throughput, [n]; higher is better, and the scale means nothing. None
            while there is nothing to learn it from.
        validate: For each configuration the valid one that would be measured. None for one that is invalid, or
            whose program was measured, is pending, or was validated before under another configuration. It replays
            the schedule, which takes milliseconds a configuration.
        pending: Configurations that were proposed and are not measured yet.
        reranks: Whether the scores of `validate` are better estimates than `score`. Then it pays to validate more
            configurations than are needed and to measure the best of them.
    """

    space: Space
    trials: tuple[Measured, ...]
    score: Score | None
    validate: Validate
    pending: frozenset[Configuration] = frozenset()
    reranks: bool = True

    @cached_property
    def taken(self) -> frozenset[Configuration]:
        """Configurations that must not be proposed: measured, failed or pending."""
        return self.pending | {trial.configuration for trial in self.trials}

    @cached_property
    def timed(self) -> list[Measured]:
        """The trials that have a time, fastest first; of equal ones the older first."""
        return sorted((trial for trial in self.trials if trial.median_us), key=lambda trial: trial.median_us or 0.0)

    def ranked(self) -> Indices:
        """Return the configurations of `timed`, [n, knobs]."""
        return as_array((trial.configuration for trial in self.timed), len(self.space.knobs))


def first_valid(
    view: View, configurations: Iterable[Configuration], wanted: int, exclude: Sequence[Configuration] = ()
) -> list[ValidConfiguration]:
    """Return the first `wanted` configurations that can be measured, in order.

    It validates in small groups, no more of them than it has to.

    Args:
        exclude: Configurations to leave out, besides those of `view.taken`.
    """
    valid: dict[Configuration, ValidConfiguration] = {}
    excluded = view.taken | set(exclude)
    fresh = [item for item in dict.fromkeys(configurations) if item not in excluded]
    while fresh and len(valid) < wanted:
        missing = wanted - len(valid)
        group = fresh[:missing]
        fresh = fresh[missing:]
        for item in view.validate(group):
            if item is not None and item.configuration not in excluded:
                valid.setdefault(item.configuration, item)
    return list(valid.values())
