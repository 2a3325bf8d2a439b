"""What a strategy sees of a task: the knobs, the trials so far, and two ways to judge configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.strategies.space import Configuration, Floats, Indices, Space, as_array


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
    found: dict[Configuration, ValidConfiguration] = {}
    excluded = view.taken | set(exclude)
    fresh = [item for item in dict.fromkeys(configurations) if item not in excluded]
    while fresh and len(found) < wanted:
        missing = wanted - len(found)
        group, fresh = fresh[:missing], fresh[missing:]
        for item in view.validate(group):
            if item is not None and item.configuration not in excluded:
                found.setdefault(item.configuration, item)
    return list(found.values())
