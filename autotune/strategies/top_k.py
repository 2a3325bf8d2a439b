"""The best configurations that a search came across."""

from __future__ import annotations

import heapq

from autotune.strategies.space import Configuration, Floats, Indices, as_array, as_tuples


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
