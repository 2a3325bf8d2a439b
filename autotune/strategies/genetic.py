"""TensorComprehensions' genetic autotuner (Vasilache et al., Tensor Comprehensions, 2018, section 5.3)."""

from __future__ import annotations

import numpy as np

from autotune.strategies.space import Indices
from autotune.strategies.strategy import Strategy

# The best trials are the population, as many as a generation of TensorComprehensions has.
POPULATION = 100
MUTATION = 0.05
PARENTS = 3


class GeneticSearch(Strategy):
    """A child takes each knob from one of three parents, chosen by fitness, and mutates at a low rate.

    The fitness is the inverse of the measured time. There is no cost model, so a batch has no order. While the
    population is not full, a part of the children are random immigrants, for diversity: half of the share that is
    missing.
    """

    name = "genetic"
    modelled = False

    def explore(self, count: int) -> Indices:
        space = self.view.space
        wanted = 16 * count
        parents = self.view.ranked()[:POPULATION]
        self.steps += 1
        if len(parents) < PARENTS:
            return space.sample(self.rng, wanted)
        children = self._bred(parents, wanted)
        missing = self.rng.random(wanted) > len(parents) / POPULATION
        immigrant = missing & (self.rng.random(wanted) < 0.5)
        return np.where(immigrant[:, None], space.sample(self.rng, wanted), children)

    def _bred(self, parents: Indices, wanted: int) -> Indices:
        """Return children of the parents, [wanted, knobs]."""
        fitness = np.array([1.0 / trial.median_us for trial in self.view.timed[:POPULATION] if trial.median_us])
        chosen = self.rng.choice(len(parents), size=(wanted, PARENTS), p=fitness / fitness.sum())
        giver = self.rng.integers(PARENTS, size=(wanted, parents.shape[1]))
        knobs = np.arange(parents.shape[1])
        children = parents[np.take_along_axis(chosen, giver, axis=1), knobs]
        mutated = self.rng.random(children.shape) < MUTATION
        other = self.view.space.sample(self.rng, wanted)
        return self.view.space.clip(np.where(mutated, other, children))
