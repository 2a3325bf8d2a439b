"""Priority, age and deadlines put jobs in an order that no job can be kept out of for ever."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autotune.planning.policy import AGING_S, STARVING_S, misses, must_start_by, turn
from autotune.planning.view import JobView


def job(id: int = 1, **more: Any) -> JobView:
    return JobView(id, "cpu", (), (), 64, 16, 0, 0.01, **more)


def test_higher_priority_goes_first_and_then_the_older() -> None:
    jobs = [job(1, submitted_at=10.0), job(2, submitted_at=5.0), job(3, priority=1, submitted_at=20.0)]
    assert [view.id for view in sorted(jobs, key=turn)] == [3, 2, 1]


def test_of_jobs_submitted_at_once_the_lower_id_goes_first() -> None:
    assert turn(job(1)) < turn(job(2))


@given(st.integers(0, 9), st.floats(0, 1e6))
def test_every_priority_is_overtaken_by_waiting(priority: int, submitted: float) -> None:
    old = job(1, submitted_at=submitted)
    new = job(2, priority=priority, submitted_at=submitted + (priority + 1) * AGING_S)
    assert turn(old) < turn(new)


def test_a_job_starves_when_it_is_not_served() -> None:
    assert must_start_by(job(served_at=100.0), 5.0) == 100.0 + STARVING_S


def test_a_deadline_presses_the_earlier_the_more_there_is_to_do() -> None:
    view = job(deadline=500.0, served_at=1e6)
    assert must_start_by(view, 200.0) < must_start_by(view, 100.0) < 500.0


def test_a_deadline_is_missed_when_the_rest_takes_longer() -> None:
    assert misses(100.0, 60.0, now=50.0)
    assert not misses(100.0, 40.0, now=50.0)
    assert not misses(None, 1e9, now=50.0)
