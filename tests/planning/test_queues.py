"""Ready stages in several orders: the lowest rank is first, and removed stages are not kept."""

from __future__ import annotations

from autotune.planning.queues import ReadyQueue, ReadyStage, SharedSearches
from autotune.planning.view import StageId, StageView


def ready(job: int, *ranks: float) -> ReadyStage:
    stage = StageView(StageId(job, 0, 0), "search", 0)
    return ReadyStage(job, "cpu", "begin", stage, tuple((rank,) for rank in ranks))


def test_the_lowest_rank_is_first_in_each_order() -> None:
    queue = ReadyQueue(2)
    first = ready(1, 1.0, 5.0)
    second = ready(2, 2.0, 4.0)
    queue.add(first)
    queue.add(second)
    assert (queue.first(0), queue.first(1)) == (first, second)
    queue.remove(second)
    assert (queue.first(0), queue.first(1)) == (first, first)
    queue.remove(first)
    assert queue.first(0) is None


def test_removed_stages_are_not_kept_in_an_order_that_nobody_asks_for() -> None:
    queue = ReadyQueue(2)
    queue.add(ready(0, 0.0, 0.0))  # stays first in the second order: what is removed below it does not reach the top
    for job in range(1, 1000):
        item = ready(job, -float(job), float(job))
        queue.add(item)
        queue.remove(item)
        queue.first(0)
    assert max(map(len, queue._heaps)) < 100


def test_of_shared_searches_the_lowest_rank_is_first_whose_log_is_free() -> None:
    claimed = {"a"}
    shared = SharedSearches(2, claimed.__contains__)
    first = ready(1, 1.0, 5.0)
    second = ready(2, 2.0, 4.0)
    third = ready(3, 3.0, 3.0)
    for key, item in (("a", first), ("b", second), ("b", third)):
        shared.add(key, item)
    assert (shared.first(0), shared.first(1)) == (second, third)
    claimed.clear()
    shared.freed("a")
    assert (shared.first(0), shared.first(1)) == (first, third)
    shared.remove("b", third)
    assert shared.first(1) is second
    claimed.add("b")
    assert shared.first(1) is first
    shared.remove("a", first)
    assert shared.first(0) is None
    shared.remove("b", second)
    assert len(shared) == 0


def test_logs_that_are_claimed_and_freed_again_and_again_leave_nothing_behind() -> None:
    claimed: set[str] = set()
    shared = SharedSearches(2, claimed.__contains__)
    for job in range(3):
        shared.add(f"{job}", ready(job, float(job), -float(job)))
    for number in range(1000):
        claimed.add(str(number % 3))
        claimed.discard(str((number + 1) % 3))
        shared.freed(str((number + 1) % 3))
        shared.first(0)  # the second order is one that nobody asks for
    assert max(map(len, shared._tops)) < 100
