"""Simulated time: which stage ends next, also where stages share CPUs or devices and slow each other down."""

from __future__ import annotations

import heapq
import math

from autotune.planning.view import StageId


class SharedCapacity:
    """Stages that share a capacity. If they demand more than there is, all of them slow down alike.

    Progress is counted in seconds of a stage at full speed, and is the same for all stages from any moment on. So the
    stages end in the order of the progress at which they do, whatever happens to the speed.
    """

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.demand = 0.0
        self.version = 0
        self._progress = 0.0
        self._updated_at = 0.0
        self._ends: list[tuple[float, int, StageId, float]] = []

    @property
    def rate(self) -> float:
        """The speed of the stages, 1 at most."""
        return min(1.0, self.capacity / self.demand) if self.demand else 1.0

    def add(self, now: float, number: int, id: StageId, seconds: float, demand: float) -> None:
        """Start a stage.

        Args:
            now: The simulated time.
            number: A number that grows with every call. It orders stages that end at once.
            id: The stage.
            seconds: How long it takes at full speed.
            demand: How much of the capacity it uses at full speed.
        """
        self._advance(now)
        heapq.heappush(self._ends, (self._progress + seconds, number, id, demand))
        self.demand += demand
        self.version += 1

    def pop(self, now: float) -> StageId:
        """Remove the stage that ends now."""
        self._advance(now)
        _, _, id, demand = heapq.heappop(self._ends)
        self.demand = self.demand - demand if self._ends else 0.0
        self.version += 1
        return id

    def next_end(self) -> float:
        """Return when the next stage ends if none starts before; infinity if none runs."""
        if not self._ends:
            return math.inf
        return self._updated_at + max(0.0, self._ends[0][0] - self._progress) / self.rate

    def _advance(self, now: float) -> None:
        self._progress += (now - self._updated_at) * self.rate
        self._updated_at = now


class SimulatedClock:
    """The simulated time in seconds, and the running stages by the capacity that they share."""

    def __init__(self) -> None:
        self.now = 0.0
        self._capacities: dict[str, SharedCapacity] = {}
        # Next ends by capacity and its version; those of older versions are skipped.
        self._next: list[tuple[float, int, str, int]] = []
        self._number = 0

    def add_capacity(self, name: str, capacity: float) -> None:
        """Add a capacity, unless there is one of this name."""
        self._capacities.setdefault(name, SharedCapacity(capacity))

    def start(self, name: str, id: StageId, seconds: float, demand: float = 1.0) -> None:
        """Start a stage that takes `seconds` at full speed and uses `demand` of a capacity."""
        self._number += 1
        self._capacities[name].add(self.now, self._number, id, seconds, demand)
        self._push_next_end(name)

    def next_end(self) -> float:
        """Return when the next stage ends; infinity if none runs."""
        return self._next[0][0] if self._drop_outdated() else math.inf

    def pop(self) -> StageId:
        """Go to the end of the next stage and remove the stage."""
        self._drop_outdated()
        end, _, name, _ = heapq.heappop(self._next)
        self.now = max(self.now, end)
        id = self._capacities[name].pop(self.now)
        self._push_next_end(name)
        return id

    def _push_next_end(self, name: str) -> None:
        capacity = self._capacities[name]
        end = capacity.next_end()
        if end < math.inf:
            self._number += 1
            heapq.heappush(self._next, (end, self._number, name, capacity.version))

    def _drop_outdated(self) -> bool:
        """Drop outdated ends, and return whether any end is left."""
        while self._next and self._capacities[self._next[0][2]].version != self._next[0][3]:
            heapq.heappop(self._next)
        return bool(self._next)
