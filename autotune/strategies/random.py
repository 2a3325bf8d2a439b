"""Random search: what every other strategy has to beat."""

from __future__ import annotations

from autotune.strategies.base import Strategy
from autotune.strategies.space import Indices


class Search(Strategy):
    """Uniform over the sketches, then over the values of each knob. No model."""

    name = "random"
    modelled = False

    def explore(self, count: int) -> Indices:
        self.steps += 1
        return self.view.space.sample(self.rng, 16 * count)
