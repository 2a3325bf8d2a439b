"""How long the stages of a job ran: overlaps count once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.daemon.job_record import WorkedTime


def worked(*intervals: tuple[float, float]) -> float:
    worked_time = WorkedTime()
    for began, ended in intervals:
        worked_time.add(began, ended)
    return worked_time.seconds


def test_what_ran_at_once_counts_once_and_a_clock_that_was_put_back_takes_nothing_away() -> None:
    assert worked((0, 10), (5, 12), (20, 25)) == 17
    assert worked((0, 2), (4, 6), (8, 9), (1, 20)) == 20
    assert worked((0, 10), (12, 3)) == 10


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=20))
def test_working_time_is_the_seconds_in_which_something_ran(stages: list[tuple[int, int]]) -> None:
    intervals = sorted(((began, began + length) for began, length in stages), key=lambda interval: interval[1])
    covered = {second for began, ended in intervals for second in range(began, ended)}
    assert worked(*intervals) == pytest.approx(len(covered))
