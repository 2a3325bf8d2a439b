"""Local beam search on the score: it draws a wide random sample, and moves the best of it by one knob at a time.

(Russell and Norvig, Artificial Intelligence, section 4.1.3.) It makes fewer steps than the other strategies, each on
a large batch, because scoring many configurations at once takes hardly longer than scoring a few.
"""

from __future__ import annotations

import numpy as np

from autotune.strategies.space import Indices, Score, as_array
from autotune.strategies.strategy import Strategy

SAMPLE = 1024
BEAM = 64
MOVES = 8
STEPS = 5


class BeamSearch(Strategy):
    """Starts from random configurations and the best trials, and keeps the best 64 configurations it has seen.

    The search ends early when no move improves the beam.
    """

    name = "beam"

    def explore(self, count: int) -> Indices:
        score = self.view.score
        assert score is not None, "a modelled strategy explores with a score"
        space = self.view.space
        width = max(BEAM, 4 * count)
        start = np.concatenate([self.view.ranked()[:BEAM], space.sample(self.rng, SAMPLE)])
        beam, scores = self._best(score, start, width)
        for _ in range(STEPS):
            self.steps += 1
            moved = space.walk(self.rng, np.repeat(beam, MOVES, axis=0))
            beam, moved_scores = self._best(score, np.concatenate([beam, moved]), width)
            if len(scores) == len(moved_scores) and not (moved_scores > scores).any():
                break
            scores = moved_scores
        return beam

    def _best(self, score: Score, configurations: Indices, width: int) -> tuple[Indices, np.ndarray]:
        """Return the `width` best distinct configurations, best first, and their scores. Measured ones count, too."""
        distinct = np.unique(configurations, axis=0)
        scores = score(distinct)
        order = np.argsort(-scores, kind="stable")[:width]
        return as_array(distinct[order], len(self.view.space.knobs)), scores[order]
