"""Samplers: which of the configurations that a strategy found get measured."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from autotune.strategies import SAMPLERS
from autotune.strategies.base import Settled, View, settle_some
from autotune.strategies.space import Configuration, Floats, Indices, Space, as_array, as_tuples

# Survivors of the cheap score that are judged on their features, for each one that is wanted: replays are dear.
_JUDGED = 4


class Sampler(ABC):
    """Picks a batch. `fills` says whether a batch that came out smaller than asked for is to be filled up."""

    fills: ClassVar[bool]

    @abstractmethod
    def pick(
        self, view: View, pool: Sequence[Configuration], count: int, rng: np.random.Generator, modelled: bool
    ) -> list[Configuration]:
        """At most `count` of the distinct `pool`, best first: settled, different, and none of them taken.

        `modelled` says that the pool is in the order of `view.score`, which the cost model may correct.
        """


@dataclass(frozen=True)
class Greedy(Sampler):
    """The best of the ranking, with a share `epsilon` of the batch drawn at random from the whole space.

    Scoring has two steps: the pool comes in the order of the cheap score; the best `4 x count` of it that
    can be measured are ordered by the cost model. (Chen et al., Learning to Optimize Tensor Programs, section 3.3.)
    """

    epsilon: float = 0.05
    fills: ClassVar[bool] = True

    def pick(
        self, view: View, pool: Sequence[Configuration], count: int, rng: np.random.Generator, modelled: bool
    ) -> list[Configuration]:
        drawn = round(count * self.epsilon) if modelled else 0
        judged = settle_some(view, pool, count * _JUDGED if modelled and view.judges else count)
        best = [item.configuration for item in _by_score(judged)[: count - drawn]]
        away = as_tuples(view.space.sample(rng, 8 * drawn))
        return best + [item.configuration for item in settle_some(view, away, drawn, best)]


def _by_score(settled: list[Settled]) -> list[Settled]:
    if any(item.score is None for item in settled):
        return settled
    return sorted(settled, key=lambda item: -(item.score or 0.0))


@dataclass(frozen=True)
class Adaptive(Sampler):
    """Adaptive Sampling and Sample Synthesis (Ahn et al., Chameleon, ICLR 2020, section 3.3 and Algorithm 1).

    The pool, measured configurations included, is clustered by k-means for k = 8, 9, ... until
    `threshold x loss >= previous loss`; of each cluster the configuration nearest to its centroid is measured. A
    batch is therefore as small as the clusters are few, and never larger than `count`.

    A nearest configuration that was measured already, or is invalid, is replaced by the synthesis: the most
    frequent value of each knob in the pool. There is one synthesis for a batch; once it is used, or when it was
    measured or is invalid too, the next nearest configuration of the same cluster that can be measured takes its
    place, so that the region stays represented by something that the search found good. A cluster
    that has none is left out: all of it is known.

    Attributes:
        synthesis: False leaves the synthesis out and goes to the next nearest at once.
    """

    threshold: float = 2.5
    fewest: int = 8
    most: int = 64
    synthesis: bool = True
    # The best of the pool that are clustered. More would reach down to configurations that nobody would measure.
    considered: int = 512
    fills: ClassVar[bool] = False

    def pick(
        self, view: View, pool: Sequence[Configuration], count: int, rng: np.random.Generator, modelled: bool
    ) -> list[Configuration]:
        rows = as_array(pool[: self.considered], len(view.space.knobs))
        if not len(rows):
            return []
        spare = [mode(view.space, rows)] if self.synthesis else []
        picked: list[Configuration] = []
        for nearest in self._clusters(view.space.coordinates(rows), count, rng):
            members = as_tuples(rows[nearest])
            for settled in settle_some(view, [members[0], *spare, *members[1:]], 1, picked):
                picked.append(settled.configuration)
        return picked

    def _clusters(self, points: Floats, count: int, rng: np.random.Generator) -> list[Indices]:
        """For each cluster its points, nearest to the centroid first; the clusters with the best points first."""
        previous, found = float("inf"), list[Indices]()
        for k in range(min(self.fewest, count), min(self.most, count) + 1):
            loss, found = cluster(points, k, rng)
            if self.threshold * loss >= previous:
                break
            previous = loss
        return sorted(found, key=lambda members: int(members.min()))


def cluster(points: Floats, k: int, rng: np.random.Generator) -> tuple[float, list[Indices]]:
    """k-means: the sum of squared distances, and for each cluster that is not empty its points, nearest first."""
    from scipy.cluster.vq import kmeans2, vq

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty cluster is left out below
        centroids, _ = kmeans2(points, min(k, len(points)), minit="++", rng=rng)
    labels, distances = vq(points, centroids)
    order = np.argsort(distances, kind="stable")
    groups = [order[labels[order] == label] for label in range(len(centroids))]
    return float((distances**2).sum()), [group for group in groups if len(group)]


def mode(space: Space, rows: Indices) -> Configuration:
    """The most frequent sketch, and of its configurations the most frequent value of each knob; lesser of equals."""
    sketch = int(np.bincount(rows[:, 0]).argmax())
    rows = rows[rows[:, 0] == sketch]
    return (sketch, *(int(np.bincount(column).argmax()) for column in rows[:, 1:].T))


def make(name: str, epsilon: float, synthesis: bool) -> Sampler:
    """A sampler by its name.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in SAMPLERS:
        raise ValueError(f"no sampler {name!r}; there are {', '.join(SAMPLERS)}")
    return Greedy(epsilon) if name == "greedy" else Adaptive(synthesis=synthesis)
