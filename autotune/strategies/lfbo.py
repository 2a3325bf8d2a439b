"""Likelihood-free Bayesian optimisation: a forest learns which trials are good, and judges the neighbours of the best.

(Song et al., A General Recipe for Likelihood-free Bayesian Optimization, ICML 2022; Helion's default search.) All nodes
of a level share one split, so a batch of candidates is judged in a few array operations.

Helion uses a random forest (pytorch/helion #1115 and #1280), and ends with all neighbours of the best (#3524).
"""

from __future__ import annotations

import numpy as np

from autotune.strategies.space import Floats, Indices
from autotune.strategies.strategy import Strategy

# Trials before the forest is asked.
FIRST = 16
TREES = 32
DEPTH = 5
# Random splits of which a level takes the best.
TRIED = 4
# Weight of the mean of all trials in a leaf.
PRIOR = 0.5
# The best trials whose neighbours are candidates, and neighbours of each.
CENTRES = 8
NEIGHBOURS = 24
# Candidates from the whole space.
RANDOM = 128
# Share of a batch that goes to the neighbours of the best trial that differ from it in one knob by one value.
POLISH = 0.75


class Forest:
    """Randomised oblivious trees that predict a label from the indices of a configuration."""

    def __init__(self, rows: Indices, labels: Floats, rng: np.random.Generator) -> None:
        self._prior = float(labels.mean())
        self._knobs = np.zeros((TREES, DEPTH), dtype=np.int64)
        self._thresholds = np.zeros((TREES, DEPTH))
        wide = np.flatnonzero(rows.min(axis=0) < rows.max(axis=0))
        leaves = np.zeros((TREES, len(rows)), dtype=np.int64)
        for level in range(DEPTH if len(wide) else 0):
            knobs = rng.choice(wide, size=(TREES, TRIED))
            drawn = rows[rng.integers(len(rows), size=(TREES, TRIED)), knobs]
            other = rows[rng.integers(len(rows), size=(TREES, TRIED)), knobs]
            thresholds = (drawn + other) / 2
            split = 2 * leaves[:, None, :] + (rows.T[knobs] > thresholds[:, :, None])
            best = _gain(split, labels, 2 ** (level + 1)).argmax(axis=1)
            tree = np.arange(TREES)
            self._knobs[:, level] = knobs[tree, best]
            self._thresholds[:, level] = thresholds[tree, best]
            leaves = split[tree, best]
        counts, sums = _by_leaf(leaves, labels, 2**DEPTH)
        self._values = (sums + PRIOR * self._prior) / (counts + PRIOR)

    def __call__(self, rows: Indices) -> Floats:
        """Predict the label, [n]."""
        above = rows.T[self._knobs] > self._thresholds[:, :, None]
        leaves = np.tensordot(2 ** np.arange(DEPTH)[::-1], above, axes=(0, 1))
        return np.asarray(np.take_along_axis(self._values, leaves, axis=1).mean(axis=0))


def _by_leaf(leaves: Indices, labels: Floats, count: int) -> tuple[Floats, Floats]:
    """Return the number and the sum of the labels of each leaf, [..., count]."""
    groups = int(np.prod(leaves.shape[:-1]))
    flat = (leaves.reshape(groups, -1) + count * np.arange(groups)[:, None]).ravel()
    weights = np.broadcast_to(labels, leaves.shape).ravel()
    shape = (*leaves.shape[:-1], count)
    counts = np.bincount(flat, minlength=groups * count).astype(np.float64).reshape(shape)
    return counts, np.bincount(flat, weights=weights, minlength=groups * count).reshape(shape)


def _gain(leaves: Indices, labels: Floats, count: int) -> Floats:
    """Return how much of the variance of the labels a partition explains, [trees, tried]."""
    counts, sums = _by_leaf(leaves, labels, count)
    return np.asarray((sums**2 / np.maximum(counts, 1)).sum(axis=-1))


class LikelihoodFreeSearch(Strategy):
    """Asks a forest for the best neighbours of the best trials, and visits all nearest neighbours of the best one.

    The forest is trained anew for each batch, on all trials of the task. It uses no cost model.
    """

    name = "lfbo"
    modelled = False

    def explore(self, count: int) -> Indices:
        space = self.view.space
        ranked = self.view.ranked()
        self.steps += 1
        if len(self.view.trials) < FIRST or not len(ranked):
            return space.sample(self.rng, 16 * count)
        forest = self._forest()
        candidates = self._best_first(forest, self._candidates(ranked))
        nearest = self._best_first(forest, space.nearest(ranked[0]))
        return self._merged(nearest, candidates, count)

    def _forest(self) -> Forest:
        trials = self.view.trials
        rows = np.array([trial.configuration for trial in trials])
        fastest = min(trial.median_us for trial in trials if trial.median_us)
        labels = np.array([fastest / trial.median_us if trial.median_us else 0.0 for trial in trials])
        return Forest(rows, labels, self.rng)

    def _candidates(self, ranked: Indices) -> Indices:
        space = self.view.space
        once = space.walk(self.rng, np.repeat(ranked[:CENTRES], NEIGHBOURS, axis=0))
        return np.concatenate([once, space.walk(self.rng, once), space.sample(self.rng, RANDOM)])

    def _best_first(self, forest: Forest, rows: Indices) -> Indices:
        return np.asarray(rows[np.argsort(-forest(rows), kind="stable")])

    def _merged(self, nearest: Indices, candidates: Indices, count: int) -> Indices:
        taken = self.view.taken
        fresh = np.array([tuple(row) not in taken for row in nearest.tolist()], dtype=bool)
        share = round(POLISH * count)
        return np.concatenate([nearest[fresh][:share], candidates, nearest[fresh][share:]])
