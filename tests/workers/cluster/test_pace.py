"""A node is slow at a kind of stage if the same stages of the same tasks take much longer on it than on others."""

from __future__ import annotations

from autotune.workers.cluster.places import Pace, Timed

BUILD = Timed("build", "0001-net", 0)
MEASURE = Timed("measure", "0001-net", 0)


def paced(slow: float, rounds: int = 6) -> Pace:
    """Two nodes build alike, and n2 takes so many times as long to measure."""
    pace = Pace()
    for _ in range(rounds):
        for node in ("n1", "n2"):
            pace.took(node, BUILD, 1.0)
        pace.took("n1", MEASURE, 2.0)
        pace.took("n2", MEASURE, 2.0 * slow)
    return pace


def test_a_slow_node_is_named_with_what_it_is_slow_at_and_one_a_little_slower_is_not() -> None:
    pace = paced(5.0)
    assert (pace.slowness("n1"), pace.slowness("n2")) == ({}, {"measure": 5})
    assert paced(2.0).slowness("n2") == {}
    assert paced(5.0, rounds=3).slowness("n2") == {}, "a few stages tell nothing"


def test_stages_of_other_tasks_and_jobs_are_not_compared() -> None:
    pace = Pace()
    for number in range(20):
        pace.took("n1", Timed("measure", "0001-net", number % 3), 1.0)
        pace.took("n2", Timed("measure", "0002-net", number % 3), 50.0)
    assert pace.slowness("n2") == {}


def test_a_node_that_recovers_or_is_gone_is_not_slow_any_more() -> None:
    pace = paced(5.0)
    for _ in range(8):
        pace.took("n2", MEASURE, 2.0)
    assert pace.slowness("n2") == {}
    pace = paced(5.0)
    pace.forget("n2")
    assert pace.slowness("n2") == {}
    pace.took("n2", MEASURE, 10.0)
    assert pace.slowness("n2") == {}
