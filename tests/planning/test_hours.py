"""Outside its hours the daemon starts nothing, and says when it will."""

from __future__ import annotations

import math
from datetime import datetime

import pytest

from autotune.planning.planner import CPU, TURN
from autotune.planning.view import StagePlan
from autotune.planning.windows import Hours
from autotune.reasons import Reason

NIGHT = Hours.parse("22:00-07:00")
ALWAYS = Hours.parse("")


def at(text: str) -> float:
    return datetime.fromisoformat(f"2026-01-10 {text}").timestamp()


def test_always_limits_nothing() -> None:
    plan = StagePlan((), {1: CPU}, frozenset({1}))
    assert ALWAYS.limit(at("12:00")) is None
    assert ALWAYS.explained(plan, at("12:00")) is plan
    assert ALWAYS.changes_at(at("12:00")) == math.inf
    assert ALWAYS.after(5.0, 60.0) == 65.0


def test_outside_the_window_nothing_ends_in_time() -> None:
    assert NIGHT.limit(at("12:00")) == -math.inf
    assert NIGHT.limit(at("03:00")) == at("07:00")


@pytest.mark.parametrize(("now", "then"), [("12:00", "22:00"), ("03:00", "07:00"), ("07:00", "22:00")])
def test_a_window_opens_and_closes(now: str, then: str) -> None:
    assert NIGHT.changes_at(at(now)) == at(then)


def test_outside_the_window_all_jobs_wait_for_it_but_those_without_a_device() -> None:
    plan = StagePlan((), {1: CPU, 2: Reason("no-device", device="cuda"), 3: TURN})
    explained = NIGHT.explained(plan, at("12:00"))
    window = Reason("window", opens_at=at("22:00"))
    assert explained.waits == {1: window, 2: Reason("no-device", device="cuda"), 3: window}
    assert explained.late == {1, 3}


def test_inside_the_window_jobs_that_would_not_end_in_time_wait_for_the_next() -> None:
    explained = NIGHT.explained(StagePlan((), {1: TURN, 2: TURN}, frozenset({2})), at("06:59"))
    assert explained.waits == {1: TURN, 2: Reason("window", opens_at=at("22:00"))}
    assert explained.late == {2}


def test_work_goes_on_the_next_night() -> None:
    assert NIGHT.after(at("06:00"), 1800) == at("06:30")
    assert NIGHT.after(at("06:00"), 2 * 3600) == at("23:00")
