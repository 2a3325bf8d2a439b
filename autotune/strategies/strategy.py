"""The contract of a strategy: it explores a design space, and a sampler picks what is measured of what it found.

A strategy is a class below `Strategy`, with a line in `strategies.STRATEGIES` or an entry point of the group
`autotune.strategies`. It sees a `View`: knobs, the trials so far and two ways to judge configurations.

What `Strategy.propose` guarantees, as long as `explore` does what it owes:
- It returns at most `count` configurations. All are different and valid; none was measured before or is pending.
- The same view, seed and sampler give the same batch. Nothing is kept between batches, so a search that is rebuilt
  from the tuning log after a kill continues unchanged.
- It terminates. An empty batch means that the space has nothing more, or nothing that can be found at a reasonable
  cost.

What an implementer owes:
- `explore` returns rows of indices, best first. `Space.clip` brings rows back into the space. Rows may repeat, and
  may have been measured. There should be several times `count` of them, because some turn out invalid.
- All randomness comes from `self.rng`. Nothing depends on the order of a set, on time or on threads.
- It keeps nothing outside of `self`, and writes nothing.
- It may call `view.score` freely (about 10 us a configuration in batches of 128). It never calls `view.validate`,
  which takes milliseconds a configuration.
- It works with no trials, with only failed trials, and in a space of one configuration.
- It adds 1 to `self.steps` for every iteration of its inner loop; strategies are compared by that count.

The whole of a strategy that looks around the best trials (a file of your own, named by an entry point):

    import numpy as np
    from autotune.strategies.strategy import Strategy

    class HillClimbing(Strategy):
        name = "hill"
        modelled = False                    # its own order counts, not the cost model's

        def explore(self, count):
            space = self.view.space
            best = self.view.ranked()
            if not len(best):
                return space.sample(self.rng, 8 * count)
            starts = np.repeat(best[:4], 4 * count, axis=0)
            self.steps += 1
            return space.walk(self.rng, starts)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from autotune.strategies.samplers import Sampler
from autotune.strategies.space import Configuration, Indices, View, as_array, as_tuples, first_valid

# A space of at most this many configurations is searched to the end.
_ENUMERATED = 2048
# In a larger space, this many random draws without a new configuration mean that it is exhausted.
_DRAWS = 512


class Strategy(ABC):
    """One search for one batch. The module says what it guarantees and what an implementer owes."""

    name: ClassVar[str] = ""
    # Whether a model ranks what `explore` returns. The greedy sampler then draws a share of the batch at random, and
    # may correct the order by the cost model.
    modelled: bool = True
    # Whether that model is `view.score`. While there is no score, the batch of such a strategy is a random sample.
    needs_score: ClassVar[bool] = True
    # The sampler it was published with.
    sampler: ClassVar[str] = "greedy"

    def __init__(self, view: View, seed: int) -> None:
        self.view = view
        self.rng = np.random.default_rng(seed)
        self.steps = 0

    @abstractmethod
    def explore(self, count: int) -> Indices:
        """Return configurations worth measuring, best first, [n, knobs].

        Args:
            count: Size of the batch that a sampler will pick from them.
        """

    def propose(self, count: int, sampler: Sampler) -> list[Configuration]:
        """Return the next batch.

        It is smaller than `count` where the sampler considers fewer enough, or where the space has no more.
        """
        if count < 1:
            return []
        random = self.modelled and self.needs_score and self.view.score is None
        pool = self.view.space.sample(self.rng, 8 * count) if random else self.explore(count)
        ordered = list(dict.fromkeys(as_tuples(self.view.space.clip(pool))))
        picked = sampler.pick(self.view, ordered, count, self.rng, self.modelled)
        wanted = count if sampler.fills else 1
        return picked + self._draw(wanted - len(picked), picked)

    def _draw(self, count: int, exclude: Sequence[Configuration]) -> list[Configuration]:
        """Draw valid configurations at random, those with the best scores first. In a small space, try all of them."""
        if count <= 0:
            return []
        space = self.view.space
        if space.size <= _ENUMERATED:
            rows = self.rng.permutation(as_array(space, len(space.knobs)))
        else:
            rows = space.sample(self.rng, _DRAWS)
        if self.view.score is not None:
            rows = rows[np.argsort(-self.view.score(rows), kind="stable")]
        drawn = as_tuples(rows)
        return [item.configuration for item in first_valid(self.view, drawn, count, exclude)]
