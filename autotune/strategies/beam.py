"""Local beam search on the score: a wide random sample, of which the best are moved by a knob at a time.

(Russell and Norvig, Artificial Intelligence, section 4.1.3.) It has the fewest turns of all strategies, each on a
large batch, since a score of many configurations costs hardly more than one of a few.
"""

from __future__ import annotations

import numpy as np

from autotune.strategies.base import Score, Strategy
from autotune.strategies.space import Indices, as_array

SAMPLE = 1024
BEAM = 64
MOVES = 8
TURNS = 5


class Search(Strategy):
    """Starts from random configurations and the best trials, and keeps the best 64 of all that it comes across.

    A beam that no move makes better has arrived, and the search ends.
    """

    name = "beam"

    def explore(self, count: int) -> Indices:
        score = self.view.score
        assert score is not None, "a modelled strategy explores with a score"
        space, width = self.view.space, max(BEAM, 4 * count)
        start = np.concatenate([self.view.ranked()[:BEAM], space.sample(self.rng, SAMPLE)])
        beam, scores = self._best(score, start, width)
        for _ in range(TURNS):
            self.steps += 1
            moved = space.walk(self.rng, np.repeat(beam, MOVES, axis=0))
            beam, moved_scores = self._best(score, np.concatenate([beam, moved]), width)
            if len(scores) == len(moved_scores) and not (moved_scores > scores).any():
                break
            scores = moved_scores
        return beam

    def _best(self, score: Score, configurations: Indices, width: int) -> tuple[Indices, np.ndarray]:
        """The best distinct ones of what may be proposed, or led to it, best first; and their scores."""
        distinct = np.unique(configurations, axis=0)
        scores = score(distinct)
        order = np.argsort(-scores, kind="stable")[:width]
        return as_array(distinct[order], len(self.view.space.knobs)), scores[order]
