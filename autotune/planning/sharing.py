"""Simulated time: when stages end, also where several share what one should have."""

from __future__ import annotations

import heapq
import math

from autotune.planning.view import StageId


class Group:
    """Stages that share a capacity equally: with more demand than there is, all slow down alike."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.demand = 0.0
        self.version = 0
        self._progress = 0.0
        self._at = 0.0
        self._ends: list[tuple[float, int, StageId, float]] = []

    @property
    def rate(self) -> float:
        return min(1.0, self.capacity / self.demand) if self.demand else 1.0

    def add(self, now: float, number: int, id: StageId, seconds: float, demand: float) -> None:
        self._advance(now)
        heapq.heappush(self._ends, (self._progress + seconds, number, id, demand))
        self.demand += demand
        self.version += 1

    def pop(self, now: float) -> StageId:
        """Take out the stage that ends now."""
        self._advance(now)
        _, _, id, demand = heapq.heappop(self._ends)
        self.demand = self.demand - demand if self._ends else 0.0
        self.version += 1
        return id

    def next_end(self) -> float:
        """When the next stage ends, if none comes or goes before."""
        if not self._ends:
            return math.inf
        return self._at + max(0.0, self._ends[0][0] - self._progress) / self.rate

    def _advance(self, now: float) -> None:
        self._progress += (now - self._at) * self.rate
        self._at = now


class Clock:
    """All groups, and which of their stages ends next."""

    def __init__(self) -> None:
        self.now = 0.0
        self.groups: dict[str, Group] = {}
        self._next: list[tuple[float, int, str, int]] = []
        self._number = 0

    def group(self, name: str, capacity: float) -> Group:
        return self.groups.setdefault(name, Group(capacity))

    def start(self, name: str, id: StageId, seconds: float, demand: float = 1.0) -> None:
        self._number += 1
        self.groups[name].add(self.now, self._number, id, seconds, demand)
        self._look(name)

    def _look(self, name: str) -> None:
        group = self.groups[name]
        at = group.next_end()
        if at < math.inf:
            self._number += 1
            heapq.heappush(self._next, (at, self._number, name, group.version))

    def _current(self) -> bool:
        while self._next and self.groups[self._next[0][2]].version != self._next[0][3]:
            heapq.heappop(self._next)
        return bool(self._next)

    def next_end(self) -> float:
        """When the next stage ends; infinity when none runs."""
        return self._next[0][0] if self._current() else math.inf

    def pop(self) -> StageId:
        """Go to the end of the next stage and take it out."""
        self._current()
        at, _, name, _ = heapq.heappop(self._next)
        self.now = max(self.now, at)
        id = self.groups[name].pop(self.now)
        self._look(name)
        return id
