"""AutoTVM's search: parallel simulated annealing on the cost model.

(Chen et al., Learning to Optimize Tensor Programs, NeurIPS 2018, section 3.3; 128 chains and at most 500 steps as in
its experiments.)
"""

from __future__ import annotations

import heapq

import numpy as np

from autotune.strategies.space import Configuration, Floats, Indices, Score, as_array, as_tuples
from autotune.strategies.strategy import Strategy

CHAINS = 128
STEPS = 500
# The search stops after this many steps without a new entry among the best.
PATIENCE = 50
# How many configurations are kept for the sampler.
KEPT = 512


class SimulatedAnnealing(Strategy):
    """Each chain changes one knob at a time. It accepts a worse configuration with a probability that cools to 0.

    AutoTVM keeps the chains between batches. Here nothing is kept: half of the chains start from the best trials,
    the others from random configurations. The temperature is in units of the standard deviation of the first scores.
    """

    name = "annealing"

    def explore(self, count: int) -> Indices:
        score = self.view.score
        assert score is not None, "a modelled strategy explores with a score"
        kept = TopK(max(KEPT, 8 * count))
        self._anneal(score, kept, count)
        return kept.best_first(len(self.view.space.knobs))

    def _anneal(self, score: Score, kept: TopK, count: int) -> None:
        """Run the chains. Only the best of a batch decide when to stop; the rest of `kept` changes for much longer."""
        space = self.view.space
        watched = TopK(max(64, count))
        points = starts(self, CHAINS)
        scores = score(points)
        kept.add(points, scores)
        unit = float(scores.std()) or 1.0
        unchanged = 0
        for step in range(STEPS):
            moved = space.walk(self.rng, points)
            moved_scores = score(moved)
            kept.add(moved, moved_scores)
            unchanged = 0 if watched.add(moved, moved_scores) else unchanged + 1
            accepted = _accepted(self.rng, moved_scores - scores, unit * (1 - step / STEPS))
            points = np.where(accepted[:, None], moved, points)
            scores = np.where(accepted, moved_scores, scores)
            self.steps += 1
            if unchanged >= PATIENCE:
                return


class TopK:
    """Keeps the `k` best of all distinct configurations that it is shown."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._heap: list[tuple[float, Configuration]] = []
        self._members: set[Configuration] = set()

    def add(self, configurations: Indices, scores: Floats) -> bool:
        """Show it configurations, [n, knobs], with their scores, [n]; return whether any of them is kept."""
        full = len(self._heap) >= self._k
        better = scores > self._heap[0][0] if full else scores > -float("inf")
        entered = [
            self._enter(item, float(score))
            for item, score in zip(as_tuples(configurations[better]), scores[better], strict=True)
        ]
        return any(entered)

    def _enter(self, item: Configuration, score: float) -> bool:
        if item in self._members:
            return False
        if len(self._heap) < self._k:
            heapq.heappush(self._heap, (score, item))
        elif score > self._heap[0][0]:
            self._members.discard(heapq.heapreplace(self._heap, (score, item))[1])
        else:
            return False
        self._members.add(item)
        return True

    def best_first(self, knobs: int) -> Indices:
        """Return the kept configurations, best first, [n, knobs]."""
        return as_array((item for _, item in sorted(self._heap, reverse=True)), knobs)


def starts(search: Strategy, chains: int) -> Indices:
    """Return where chains start, [chains, knobs]: up to half of them at the best trials, the others at random."""
    space = search.view.space
    best = search.view.ranked()[: chains // 2]
    return np.concatenate([as_array(best, len(space.knobs)), space.sample(search.rng, chains - len(best))])


def _accepted(rng: np.random.Generator, gain: np.ndarray, temperature: float) -> np.ndarray:
    return rng.random(len(gain)) < np.exp(np.minimum(gain / temperature, 0.0))
