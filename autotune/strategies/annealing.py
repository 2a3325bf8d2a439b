"""AutoTVM's search: parallel simulated annealing on the cost model (Chen et al., Learning to Optimize Tensor Programs,
NeurIPS 2018, section 3.3; 128 chains and at most 500 steps as in its experiments)."""

from __future__ import annotations

import numpy as np

from autotune.strategies.base import Score, Strategy
from autotune.strategies.elite import Elite
from autotune.strategies.space import Indices, as_array

CHAINS = 128
STEPS = 500
# Steps without a new entry among the best after which the chains have converged.
PATIENCE = 50
# Configurations kept for the sampler.
KEPT = 512


class Search(Strategy):
    """Each chain changes one knob to another value, and accepts what is worse with a probability that cools to 0.

    AutoTVM keeps the chains between batches. Here nothing is kept: half of the chains start from the best trials,
    the others anywhere. The temperature is in units of the spread of the first scores, whatever their scale.
    """

    name = "annealing"

    def explore(self, count: int) -> Indices:
        score = self.view.score
        assert score is not None, "a modelled strategy explores with a score"
        elite = Elite(max(KEPT, 8 * count))
        self._anneal(score, elite, count)
        return elite.best_first(len(self.view.space.knobs))

    def _anneal(self, score: Score, elite: Elite, count: int) -> None:
        """Early stop looks at the best of a batch: the rest of what is kept changes for much longer."""
        space, watched = self.view.space, Elite(max(64, count))
        points = starts(self, CHAINS)
        scores = score(points)
        elite.add(points, scores)
        unit = float(scores.std()) or 1.0
        since = 0
        for step in range(STEPS):
            moved = space.walk(self.rng, points)
            moved_scores = score(moved)
            elite.add(moved, moved_scores)
            since = 0 if watched.add(moved, moved_scores) else since + 1
            accepted = _accepted(self.rng, moved_scores - scores, unit * (1 - step / STEPS))
            points = np.where(accepted[:, None], moved, points)
            scores = np.where(accepted, moved_scores, scores)
            self.steps += 1
            if since >= PATIENCE:
                return


def starts(search: Strategy, chains: int) -> Indices:
    """Where chains begin: up to half of them at the best trials, the others at random."""
    space = search.view.space
    best = search.view.ranked()[: chains // 2]
    return np.concatenate([as_array(best, len(space.knobs)), space.sample(search.rng, chains - len(best))])


def _accepted(rng: np.random.Generator, gain: np.ndarray, temperature: float) -> np.ndarray:
    return rng.random(len(gain)) < np.exp(np.minimum(gain / temperature, 0.0))
