"""Samplers: which of the configurations that a strategy found are measured."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from autotune.strategies import SAMPLERS
from autotune.strategies.space import (
    Configuration,
    Floats,
    Indices,
    ValidConfiguration,
    View,
    as_array,
    as_tuples,
    first_valid,
)

# How many configurations are validated and reranked for each one that is picked. Validation is slow.
_RERANKED_PER_PICK = 4


class Sampler(ABC):
    """Picks a batch from what a strategy explored.

    Attributes:
        fills: Whether a batch that is smaller than was asked for is filled up from random configurations, those with
            the best scores first.
    """

    fills: ClassVar[bool]

    @abstractmethod
    def pick(
        self, view: View, pool: Sequence[Configuration], count: int, rng: np.random.Generator, modelled: bool
    ) -> list[Configuration]:
        """Pick at most `count` configurations, best first. All are valid and different; none was taken.

        Args:
            pool: Distinct configurations, best first.
            modelled: Whether a model has ranked the pool. The cost model may then correct the order.
        """


@dataclass(frozen=True)
class Greedy(Sampler):
    """Picks the best of the ranking, and a share `epsilon` of the batch at random from the whole space.

    Ranking has two steps. The pool comes in the order of the cheap score. The cost model then orders the best
    `4 x count` valid configurations of it. (Chen et al., Learning to Optimize Tensor Programs, section 3.3.)
    """

    epsilon: float = 0.05
    fills: ClassVar[bool] = True

    def pick(
        self, view: View, pool: Sequence[Configuration], count: int, rng: np.random.Generator, modelled: bool
    ) -> list[Configuration]:
        drawn = round(count * self.epsilon) if modelled else 0
        best = first_valid(view, pool, count * _RERANKED_PER_PICK if modelled and view.reranks else count)
        picked = [item.configuration for item in _by_score(best)[: count - drawn]]
        others = as_tuples(view.space.sample(rng, 8 * drawn))
        return picked + [item.configuration for item in first_valid(view, others, drawn, picked)]


def _by_score(valid: list[ValidConfiguration]) -> list[ValidConfiguration]:
    if any(item.score is None for item in valid):
        return valid
    return sorted(valid, key=lambda item: -(item.score or 0.0))


@dataclass(frozen=True)
class Adaptive(Sampler):
    """Adaptive Sampling and Sample Synthesis (Ahn et al., Chameleon, ICLR 2020, section 3.3 and Algorithm 1).

    k-means clusters the pool, measured configurations included, for k = 8, 9, ... until
    `threshold x loss >= previous loss`. Of each cluster the configuration nearest to its centroid is picked. The
    batch has as many configurations as there are clusters, at most `count`.

    A nearest configuration that is invalid or was measured is replaced by the synthesis: the most frequent value of
    each knob in the pool. A batch has one synthesis. Once it is used, invalid or measured, the next nearest valid
    configuration of the same cluster takes the place, so that the region stays represented. A cluster without one is
    left out.

    Attributes:
        threshold: How many times smaller the loss must become for k to rise further.
        fewest, most: Bounds of k.
        synthesis: False goes to the next nearest configuration at once.
        considered: Size of the part of the pool that is clustered, best first. A larger part would include
            configurations that are not worth a measurement.
    """

    threshold: float = 2.5
    fewest: int = 8
    most: int = 64
    synthesis: bool = True
    considered: int = 512
    fills: ClassVar[bool] = False

    def pick(
        self, view: View, pool: Sequence[Configuration], count: int, rng: np.random.Generator, modelled: bool
    ) -> list[Configuration]:
        rows = as_array(pool[: self.considered], len(view.space.knobs))
        if not len(rows):
            return []
        spare = [mode(rows)] if self.synthesis else []
        picked: list[Configuration] = []
        for nearest in self._clusters(view.space.coordinates(rows), count, rng):
            members = as_tuples(rows[nearest])
            for item in first_valid(view, [members[0], *spare, *members[1:]], 1, picked):
                picked.append(item.configuration)
        return picked

    def _clusters(self, points: Floats, count: int, rng: np.random.Generator) -> list[Indices]:
        """Return the points of each cluster, nearest to the centroid first; the cluster of the best point first."""
        previous = float("inf")
        clusters: list[Indices] = []
        for k in range(min(self.fewest, count), min(self.most, count) + 1):
            loss, clusters = cluster(points, k, rng)
            if self.threshold * loss >= previous:
                break
            previous = loss
        return sorted(clusters, key=lambda members: int(members.min()))


def cluster(points: Floats, k: int, rng: np.random.Generator) -> tuple[float, list[Indices]]:
    """Cluster by k-means.

    Returns:
        The sum of squared distances, and the points of each cluster that is not empty, nearest to its centroid first.
    """
    from scipy.cluster.vq import kmeans2, vq

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty cluster is left out below
        centroids, _ = kmeans2(points, min(k, len(points)), minit="++", rng=rng)
    labels, distances = vq(points, centroids)
    order = np.argsort(distances, kind="stable")
    groups = [order[labels[order] == label] for label in range(len(centroids))]
    return float((distances**2).sum()), [group for group in groups if len(group)]


def mode(rows: Indices) -> Configuration:
    """Return the most frequent sketch and, among its rows, the most frequent value of each knob.

    Of values that are equally frequent, the smaller index counts.
    """
    sketch = int(np.bincount(rows[:, 0]).argmax())
    rows = rows[rows[:, 0] == sketch]
    return (sketch, *(int(np.bincount(column).argmax()) for column in rows[:, 1:].T))


def make(name: str, epsilon: float, synthesis: bool) -> Sampler:
    """Make a sampler by its name.

    Args:
        epsilon: Share of a batch that `greedy` draws at random.
        synthesis: Whether `adaptive` replaces what was measured by a synthesis.

    Raises:
        ValueError: There is none of this name.
    """
    if name not in SAMPLERS:
        raise ValueError(f"no sampler {name!r}; there are {', '.join(SAMPLERS)}")
    return Greedy(epsilon) if name == "greedy" else Adaptive(synthesis=synthesis)
