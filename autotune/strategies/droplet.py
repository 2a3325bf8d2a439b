"""The Droplet search: coordinate descent from the best of the first trials (Canesche et al., The Droplet Search
Algorithm for Kernel Scheduling, ACM TACO 2024)."""

from __future__ import annotations

import numpy as np

from autotune.strategies.annealing import Search as Annealing
from autotune.strategies.space import Indices

# Trials of a task before the descent. The paper takes 300; a job of many tasks gives each of them fewer than that.
FIRST = 64
# Configurations offered at most: with invalid and repeated ones among them, enough for a batch.
OFFERED = 512


class Search(Annealing):
    """Steps along one knob at a time from the best trial, the nearest first; whatever is faster is the next centre.

    The first trials come from annealing. The neighbours of the best are those one value away along each knob, then two,
    four and so on; which of them are known follows from the log, so a centre whose neighbours are all known makes
    its wider ones come next, and after them those of the second best trial. Within a distance the cheap
    score says which comes first. The paper's test whether a difference is significant is left out: a strategy
    sees one time of a trial, the median.
    """

    name = "droplet"

    def explore(self, count: int) -> Indices:
        ranked = self.view.ranked()
        if len(self.view.trials) < FIRST or not len(ranked):
            return super().explore(count)
        self.modelled = False  # its own order is the one to measure in
        rings = []
        offered = 0
        for centre in ranked:
            rings.append(self._neighbours(centre))
            offered += len(rings[-1])
            if offered >= max(OFFERED, 8 * count):
                break
        return np.concatenate(rings)

    def _neighbours(self, centre: Indices) -> Indices:
        """Configurations along each knob, the nearest first, without those that are known."""
        space = self.view.space
        found = []
        distance = 1
        while distance < int(space.sizes.max()):
            moves = distance * np.eye(len(centre), dtype=np.int64)
            inside = space.clip(np.concatenate([centre + moves, centre - moves]))
            found.append(self._best_first(np.unique(inside, axis=0)))
            self.steps += 1
            distance *= 2
        return np.concatenate([centre[None], *found])

    def _best_first(self, ring: Indices) -> Indices:
        if self.view.score is None:
            return ring
        return ring[np.argsort(-self.view.score(ring), kind="stable")]
