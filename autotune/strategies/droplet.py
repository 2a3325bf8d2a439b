"""The Droplet search: coordinate descent from the best of the first trials.

(Canesche et al., The Droplet Search Algorithm for Kernel Scheduling, ACM TACO 2024.)
"""

from __future__ import annotations

import numpy as np

from autotune.strategies.annealing import SimulatedAnnealing
from autotune.strategies.space import Indices

# Trials of a task before the descent. The paper takes 300; a job of many tasks gives each of them fewer than that.
FIRST = 64
# At most this many configurations are returned: with invalid and repeated ones among them, enough for a batch.
OFFERED = 512


class DropletSearch(SimulatedAnnealing):
    """Steps along one knob at a time from the best trial, the nearest first. The fastest trial is the next centre.

    The first trials come from simulated annealing. The neighbours of a centre differ from it in one knob, by 1, then
    by 2, 4 and so on. The log tells which of them were measured: once the near ones are, the search continues with
    the wider ones, and after them with those of the second best trial. Within a distance the cheap score decides
    the order. The paper's significance test is left out, because a strategy sees one time of a trial, the median.
    """

    name = "droplet"

    def explore(self, count: int) -> Indices:
        ranked = self.view.ranked()
        if len(self.view.trials) < FIRST or not len(ranked):
            return super().explore(count)
        self.modelled = False  # the distance decides the order, not a model
        neighbours = []
        offered = 0
        for centre in ranked:
            neighbours.append(self._neighbours(centre))
            offered += len(neighbours[-1])
            if offered >= max(OFFERED, 8 * count):
                break
        return np.concatenate(neighbours)

    def _neighbours(self, centre: Indices) -> Indices:
        """Return the centre and the configurations along each knob, the nearest first, [n, knobs]."""
        space = self.view.space
        rings = []
        distance = 1
        while distance < int(space.sizes.max()):
            moves = distance * np.eye(len(centre), dtype=np.int64)
            inside = space.clip(np.concatenate([centre + moves, centre - moves]))
            rings.append(self._best_first(np.unique(inside, axis=0)))
            self.steps += 1
            distance *= 2
        return np.concatenate([centre[None], *rings])

    def _best_first(self, configurations: Indices) -> Indices:
        if self.view.score is None:
            return configurations
        return configurations[np.argsort(-self.view.score(configurations), kind="stable")]
