"""What a strategy is: it explores a design space, and a sampler picks from what it found what gets measured.

A strategy is one module with a class `Search` below `Strategy`, and a line in `strategies.STRATEGIES` or an entry
point `autotune.strategies`. It sees a `View`: knobs, the trials so far and two ways to judge configurations.

What `Strategy.propose` guarantees, whatever `explore` does within its duties:
- at most `count` configurations, all different, all valid, none measured before or on its way;
- the same view, seed and sampler give the same batch: nothing is kept between batches, so that a search that is
  rebuilt from the tuning log after a kill goes on as if nothing had happened;
- it ends: an empty batch means that the space has nothing more, or nothing that can be found at reasonable cost.

What an implementer owes:
- `explore` returns rows of indices, best first; `Space.clip` brings rows back into the space. They may repeat, and
  they may have been measured. There should be several times `count` of them, for some turn out invalid;
- all randomness comes from `self.rng`, and nothing depends on the order of a set, on time or on threads;
- it keeps nothing outside of `self`, and writes nothing;
- it calls `view.score` as it likes (about 10 us a configuration in batches of 128), and never `view.settle`,
  which costs milliseconds a configuration;
- it works with no trials, with only failed trials, and in a space of one configuration;
- it adds to `self.steps` for every turn of its inner loop, which is how strategies are compared.

The whole of a strategy that looks around the best trial (a file of your own, named by an entry point):

    import numpy as np
    from autotune.strategies.base import Strategy

    class Search(Strategy):
        name = "hill"
        modelled = False                    # its own order counts, not the cost model's

        def explore(self, count):
            space, best = self.view.space, self.view.ranked()
            if not len(best):
                return space.sample(self.rng, 8 * count)
            starts = np.repeat(best[:4], 4 * count, axis=0)
            self.steps += 1
            return space.walk(self.rng, starts)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from autotune.strategies.space import Configuration, Floats, Indices, Space, as_array, as_tuples

if TYPE_CHECKING:
    from autotune.strategies.samplers import Sampler

# A space up to this size is searched to the end; in a larger one so many random draws say that it is exhausted.
_ENUMERATED = 2048
_DRAWS = 512


@dataclass(frozen=True)
class Measured:
    """A trial: a configuration and its time in microseconds, None when it failed."""

    configuration: Configuration
    best_us: float | None


@dataclass(frozen=True)
class Settled:
    """A configuration that can be measured, and the cost model's estimate of it; None where there is no model.

    `configuration` is the one that was asked for or another that stands for the same program.
    """

    configuration: Configuration
    score: float | None


Score = Callable[[Indices], Floats]
Settle = Callable[[Sequence[Configuration]], "list[Settled | None]"]


@dataclass(frozen=True)
class View:
    """All that a strategy sees of a task.

    Attributes:
        space: the knobs.
        trials: everything measured so far, oldest first, failures included.
        score: a cheap estimate of relative throughput, [n], higher is better, with no claim to scale; None while
            there is nothing to learn it from.
        settle: for each configuration what would be measured; None for one that is invalid, or whose program was
            measured, is on its way, or was settled before under another configuration. Milliseconds each.
        pending: configurations that are on their way to becoming trials.
        judges: whether `settle` gives a better estimate than `score`, so that it pays to settle more than needed.
    """

    space: Space
    trials: tuple[Measured, ...]
    score: Score | None
    settle: Settle
    pending: frozenset[Configuration] = frozenset()
    judges: bool = True

    @cached_property
    def taken(self) -> frozenset[Configuration]:
        """What must not be proposed: measured, failed or pending."""
        return self.pending | {trial.configuration for trial in self.trials}

    @cached_property
    def timed(self) -> list[Measured]:
        """The trials that have a time, fastest first; of equal ones the older first."""
        return sorted((trial for trial in self.trials if trial.best_us), key=lambda trial: trial.best_us or 0.0)

    def ranked(self) -> Indices:
        """The configurations of `timed`, [n, knobs]."""
        return as_array((trial.configuration for trial in self.timed), len(self.space.knobs))


class Strategy(ABC):
    """One search for one batch. See the module for what it guarantees and what an implementer owes."""

    name: ClassVar[str] = ""
    # Whether `view.score` steers it. If so and there is no score yet, its batch is a random sample, and the sampler
    # may reorder what it found by the cost model.
    modelled: bool = True
    # The sampler it was published with.
    sampler: ClassVar[str] = "greedy"

    def __init__(self, view: View, seed: int) -> None:
        self.view = view
        self.rng = np.random.default_rng(seed)
        self.steps = 0

    @abstractmethod
    def explore(self, count: int) -> Indices:
        """Configurations worth measuring, best first, [n, knobs]; a batch of `count` will be picked from them."""

    def propose(self, count: int, sampler: Sampler) -> list[Configuration]:
        """The next batch; fewer than `count` where the sampler thinks fewer enough, or the space has no more."""
        if count < 1:
            return []
        informed = self.view.score is not None or not self.modelled
        pool = self.explore(count) if informed else self.view.space.sample(self.rng, 8 * count)
        ordered = list(dict.fromkeys(as_tuples(self.view.space.clip(pool))))
        picked = sampler.pick(self.view, ordered, count, self.rng, self.modelled)
        wanted = count if sampler.fills else 1
        return picked + self._anything(wanted - len(picked), picked)

    def _anything(self, count: int, but: Sequence[Configuration]) -> list[Configuration]:
        """Random configurations that can be measured; in a small space, all there are before it is given up."""
        if count <= 0:
            return []
        space = self.view.space
        if space.size <= _ENUMERATED:
            every = list(space)
            drawn: Iterable[Configuration] = [every[index] for index in self.rng.permutation(len(every))]
        else:
            drawn = as_tuples(space.sample(self.rng, _DRAWS))
        return [item.configuration for item in settle_some(self.view, drawn, count, but)]


def settle_some(
    view: View, configurations: Iterable[Configuration], wanted: int, but: Sequence[Configuration] = ()
) -> list[Settled]:
    """The first `wanted` that can be measured, in order; settles no more than it has to, in small groups."""
    found: dict[Configuration, Settled] = {}
    avoided = view.taken | set(but)
    fresh = [item for item in dict.fromkeys(configurations) if item not in avoided]
    while fresh and len(found) < wanted:
        group, fresh = fresh[: wanted - len(found)], fresh[wanted - len(found) :]
        for item in view.settle(group):
            if item is not None and item.configuration not in avoided:
                found.setdefault(item.configuration, item)
    return list(found.values())
