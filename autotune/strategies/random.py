"""Random search, the baseline of every other strategy."""

from __future__ import annotations

from autotune.strategies.space import Indices
from autotune.strategies.strategy import Strategy


class RandomSearch(Strategy):
    """Draws uniformly over the sketches, then over the values of each knob. It uses no model."""

    name = "random"
    modelled = False

    def explore(self, count: int) -> Indices:
        self.steps += 1
        return self.view.space.sample(self.rng, 16 * count)
