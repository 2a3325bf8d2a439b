"""Stages that could start, kept in several orders at once, so that a tick costs what has changed and no more."""

from __future__ import annotations

import heapq
from typing import Literal

from autotune.planning.view import StageView

# measure: a batch for the device. proceed: a build or a training of a round begun. begin: the search of a new round.
Step = Literal["measure", "proceed", "begin"]
Rank = tuple[float, ...]


class Offer:
    """A stage that its job could start now. It lives until the job changes."""

    __slots__ = ("alive", "device", "job", "ranks", "stage", "step")

    def __init__(self, job: int, device: str, step: Step, stage: StageView, ranks: tuple[Rank, ...]) -> None:
        self.job, self.device, self.step, self.stage, self.ranks = job, device, step, stage, ranks
        self.alive = True


class Ranked:
    """Offers in every order that the policy has. Dead ones stay in the heaps until they surface."""

    def __init__(self, orders: int) -> None:
        self._heaps: list[list[tuple[Rank, int, Offer]]] = [[] for _ in range(orders)]
        self._pushed = 0
        self.alive = 0

    def put(self, offer: Offer) -> None:
        self.alive += 1
        self._pushed += 1
        for heap, rank in zip(self._heaps, offer.ranks, strict=True):
            heapq.heappush(heap, (rank, self._pushed, offer))
        # Any of them: an order that nobody asks for the top of never lets its dead ones surface.
        if max(map(len, self._heaps)) > 64 + 4 * self.alive:
            self._sweep()

    def drop(self, offer: Offer) -> None:
        offer.alive = False
        self.alive -= 1

    def top(self, order: int = 0) -> Offer | None:
        """The offer of least rank; None without any."""
        heap = self._heaps[order]
        while heap and not heap[0][2].alive:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def _sweep(self) -> None:
        for heap in self._heaps:
            heap[:] = [item for item in heap if item[2].alive]
            heapq.heapify(heap)


class Lane:
    """What the jobs of one kind of device offer, and how much of it is on its way."""

    def __init__(self, kind: str, orders: int) -> None:
        self.kind = kind
        self.steps: dict[Step, Ranked] = {step: Ranked(orders) for step in ("measure", "proceed", "begin")}
        # Milliseconds, as whole numbers: sums that are added to and taken from must not drift.
        self.cpu_ms = 0
        self.device_ms = 0
        self.supply_ms = 0
        self.begun_ms = 0
        # Batches that are ready to be measured: a job offers one of them at a time.
        self.gathered = 0
