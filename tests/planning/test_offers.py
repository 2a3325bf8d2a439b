"""Offers in several orders: the least that lives is on top, and the dead are not kept."""

from __future__ import annotations

from autotune.planning.offers import Offer, Ranked
from autotune.planning.view import StageId, StageView


def offer(job: int, *ranks: float) -> Offer:
    stage = StageView(StageId(job, 0, 0), "search", 0)
    return Offer(job, "cpu", "begin", stage, tuple((rank,) for rank in ranks))


def test_the_least_that_lives_is_on_top_of_each_order() -> None:
    offers = Ranked(2)
    first, second = offer(1, 1.0, 5.0), offer(2, 2.0, 4.0)
    offers.put(first)
    offers.put(second)
    assert (offers.top(0), offers.top(1)) == (first, second)
    offers.drop(second)
    assert (offers.top(0), offers.top(1)) == (first, first)
    offers.drop(first)
    assert offers.top(0) is None


def test_the_dead_are_not_kept_in_an_order_that_nobody_asks_for() -> None:
    offers = Ranked(2)
    offers.put(offer(0, 0.0, 0.0))  # on top of the second order for good: what dies below it does not surface
    for job in range(1, 1000):
        item = offer(job, -float(job), float(job))
        offers.put(item)
        offers.drop(item)
        offers.top(0)
    assert max(map(len, offers._heaps)) < 100
