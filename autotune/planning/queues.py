"""Priority queues of ready stages. Each queue is kept in several orders at once.

The queues are updated by what has changed, so that a plan costs no more than the changes since the last one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Literal

from autotune.planning.view import StageView

# measure: a batch to measure. continue: what a round that has begun does on a CPU. begin: the search of a new round.
QueueName = Literal["measure", "continue", "begin"]
Rank = tuple[float, ...]


class ReadyStage:
    """A stage that could start now if its job gets the resources.

    Attributes:
        job: The id of its job.
        device: The kind of device that the job measures on.
        queue: The queue that the stage is in.
        ranks: Its rank in each order of the policy. The stage of the lowest rank goes first.
        queued: False once the stage has been removed from its queue.
    """

    __slots__ = ("device", "job", "queue", "queued", "ranks", "stage")

    def __init__(self, job: int, device: str, queue: QueueName, stage: StageView, ranks: tuple[Rank, ...]) -> None:
        self.job = job
        self.device = device
        self.queue = queue
        self.stage = stage
        self.ranks = ranks
        self.queued = True


class ReadyQueue:
    """Ready stages in every order that the policy has.

    One heap per order. Removed stages stay in the heaps until they reach the top, or until they are too many.
    """

    def __init__(self, orders: int) -> None:
        self._heaps: list[list[tuple[Rank, int, ReadyStage]]] = [[] for _ in range(orders)]
        self._added = 0
        self.count = 0

    def add(self, ready: ReadyStage) -> None:
        """Add a stage."""
        self.count += 1
        self._added += 1
        for heap, rank in zip(self._heaps, ready.ranks, strict=True):
            heapq.heappush(heap, (rank, self._added, ready))
        # Look at the longest heap: one that is never asked for its first stage never drops the removed ones.
        if max(map(len, self._heaps)) > 64 + 4 * self.count:
            self._compact()

    def remove(self, ready: ReadyStage) -> None:
        """Remove a stage that is in this queue."""
        ready.queued = False
        self.count -= 1

    def first(self, order: int = 0) -> ReadyStage | None:
        """Return the stage of the lowest rank in an order; None if the queue is empty."""
        heap = self._heaps[order]
        while heap and not heap[0][2].queued:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def _compact(self) -> None:
        for heap in self._heaps:
            heap[:] = [entry for entry in heap if entry[2].queued]
            heapq.heapify(heap)


class SharedSearches:
    """Ready searches of tasks that several jobs have, by the key of their tuning log.

    While a log is claimed none of its searches is first. So a claim that begins or ends costs the same, however many
    jobs wait for it.
    """

    def __init__(self, orders: int, is_claimed: Callable[[str], bool]) -> None:
        self._is_claimed = is_claimed
        self._queues: dict[str, ReadyQueue] = {}
        # In each order the ranks that were first in the queue of a key, at most that of the one which is first now. A
        # key that is free and has searches is there at least once.
        self._tops: list[list[tuple[Rank, str]]] = [[] for _ in range(orders)]

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, key: str, ready: ReadyStage) -> None:
        """Add a search."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ReadyQueue(len(self._tops))
        queue.add(ready)
        for order in range(len(self._tops)):
            if queue.first(order) is ready:
                self._offer(key, ready, order)

    def remove(self, key: str, ready: ReadyStage) -> None:
        """Remove a search that is in this queue."""
        self._queues[key].remove(ready)
        if not self._queues[key].count:
            del self._queues[key]

    def freed(self, key: str) -> None:
        """Take note that a log is no longer claimed."""
        if queue := self._queues.get(key):
            for order in range(len(self._tops)):
                if (ready := queue.first(order)) is not None:
                    self._offer(key, ready, order)

    def first(self, order: int) -> ReadyStage | None:
        """Return the search of the lowest rank in an order of those whose log is free; None if there is none."""
        tops = self._tops[order]
        while tops:
            rank, key = tops[0]
            ready = self._first_of(key, order)
            if ready is None:
                heapq.heappop(tops)
            elif ready.ranks[order] == rank:
                return ready
            else:
                heapq.heapreplace(tops, (ready.ranks[order], key))
        return None

    def _first_of(self, key: str, order: int) -> ReadyStage | None:
        queue = self._queues.get(key)
        return queue.first(order) if queue and not self._is_claimed(key) else None

    def _offer(self, key: str, ready: ReadyStage, order: int) -> None:
        tops = self._tops[order]
        heapq.heappush(tops, (ready.ranks[order], key))
        if len(tops) > 64 + 4 * len(self._queues):
            firsts = ((self._first_of(key, order), key) for key in self._queues)
            tops[:] = [(first.ranks[order], key) for first, key in firsts if first is not None]
            heapq.heapify(tops)


class DeviceQueues:
    """The ready stages of all jobs that measure on one kind of device, and the sums of their remaining work.

    Attributes:
        kind: The kind of device.
        devices: How many devices of the kind the machine has.
        queues: The three queues by name. A job has at most one stage in each.
        shared: More searches, of tasks that several jobs have.
        cpu_ms, device_ms, ready_ms, begun_ms: Sums over the jobs; see `RemainingWork`.
        ready_batches: How many batches are ready to be measured. A job may have several, of which one is queued.
    """

    def __init__(self, kind: str, devices: int, orders: int, is_claimed: Callable[[str], bool]) -> None:
        self.kind = kind
        self.devices = devices
        self.queues: dict[QueueName, ReadyQueue] = {
            name: ReadyQueue(orders) for name in ("measure", "continue", "begin")
        }
        self.shared = SharedSearches(orders, is_claimed)
        self.cpu_ms = 0
        self.device_ms = 0
        self.ready_ms = 0
        self.begun_ms = 0
        self.ready_batches = 0

    def first(self, queue: QueueName, order: int) -> ReadyStage | None:
        """Return the stage of the lowest rank in an order that could start now."""
        own = self.queues[queue].first(order)
        shared = self.shared.first(order) if queue == "begin" else None
        if own is None or shared is None:
            return own or shared
        return min(own, shared, key=lambda ready: ready.ranks[order])
