"""Windows follow the clock on the wall, also in the nights when it is put forward and back."""

from __future__ import annotations

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.planning.windows import DailyWindow, next_moment, parse_time, parse_window

BERLIN = ZoneInfo("Europe/Berlin")  # forward on 2026-03-29 at 02:00, back on 2026-10-25 at 03:00
NIGHT = parse_window("22:00-07:00")


def at(text: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


def wall(moment: float | None) -> str:
    return "" if moment is None else datetime.fromtimestamp(moment, BERLIN).strftime("%d %H:%M")


@pytest.mark.parametrize(
    ("now", "closes"),
    [
        ("2026-01-10 21:59", ""),
        ("2026-01-10 22:00", "11 07:00"),
        ("2026-01-11 06:59", "11 07:00"),
        ("2026-01-11 07:00", ""),
        ("2026-03-28 23:00", "29 07:00"),
        ("2026-10-24 23:00", "25 07:00"),
    ],
)
def test_a_window_closes_when_the_clock_says_so(now: str, closes: str) -> None:
    assert wall(NIGHT.closes_at(at(now), BERLIN)) == closes


@pytest.mark.parametrize(("night", "hours"), [("2026-03-28", 8), ("2026-06-01", 9), ("2026-10-24", 10)])
def test_a_night_is_as_long_as_it_is(night: str, hours: int) -> None:
    opens = at(f"{night} 22:00")
    closes = NIGHT.closes_at(opens, BERLIN)
    assert closes is not None and closes - opens == hours * 3600


def test_a_time_that_is_skipped_or_comes_twice() -> None:
    skipped = parse_window("02:30-04:00")
    twice = parse_window("22:00-02:30")
    assert wall(skipped.opens_at(at("2026-03-29 00:00"), BERLIN)) == "29 03:30"
    assert twice.closes_at(at("2026-10-25 01:00"), BERLIN) == at("2026-10-25 02:30")
    assert twice.closes_at(at("2026-10-25 02:10", fold=1), BERLIN) is None


def test_a_window_opens_next() -> None:
    assert wall(NIGHT.opens_at(at("2026-01-10 12:00"), BERLIN)) == "10 22:00"
    assert NIGHT.opens_at(at("2026-01-10 23:00"), BERLIN) == at("2026-01-10 23:00")


@pytest.mark.parametrize(
    ("now", "hours", "ends"),
    [
        ("2026-01-10 23:00", 8, "11 07:00"),
        ("2026-01-10 23:00", 9, "11 23:00"),
        ("2026-01-10 12:00", 1, "10 23:00"),
        ("2026-01-10 12:00", 30, "14 01:00"),
        ("2026-03-28 22:00", 9, "29 23:00"),
        ("2026-10-24 22:00", 10, "25 07:00"),
    ],
)
def test_work_goes_on_in_the_next_window(now: str, hours: float, ends: str) -> None:
    assert wall(NIGHT.after(at(now), hours * 3600, BERLIN)) == ends


def test_work_in_a_window_of_the_whole_day_never_stops() -> None:
    assert parse_window("05:00-05:00").after(at("2026-01-10 04:00"), 1e6, BERLIN) == at("2026-01-10 04:00") + 1e6


def test_equal_ends_are_the_whole_day() -> None:
    assert wall(DailyWindow(time(5), time(5)).closes_at(at("2026-01-10 04:00"), BERLIN)) == "10 05:00"


CLOCKS = st.builds(time, st.integers(0, 23), st.integers(0, 59))


@settings(max_examples=60, deadline=None)
@given(now=st.integers(1_700_000_000, 1_900_000_000), start=CLOCKS, end=CLOCKS)
def test_a_window_is_open_from_its_start_to_its_end_of_any_day_and_else_opens_at_its_start(
    now: int, start: time, end: time
) -> None:
    def clock(moment: float) -> time:
        return datetime.fromtimestamp(moment, UTC).time()

    inside = start <= clock(now) < end if start < end else clock(now) >= start or clock(now) < end
    opens = DailyWindow(start, end).opens_at(now, UTC)
    closes = DailyWindow(start, end).closes_at(now, UTC)
    assert inside == (closes is not None) == (opens == now)
    change = opens if closes is None else closes
    assert clock(change) == (start if closes is None else end)
    assert now < change <= now + 86_400


@pytest.mark.parametrize("text", ["", "22:00", "22-07", "24:00-07:00", "22:60-07:00", "22:00-07:00-08:00"])
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(ValueError, match="is no "):
        parse_window(text)


def test_the_next_moment() -> None:
    now = at("2026-10-24 12:00")
    assert wall(next_moment("07:00", now, BERLIN)) == "25 07:00"
    assert wall(next_moment("12:00", now, BERLIN)) == "25 12:00"
    assert wall(next_moment("12:01", now, BERLIN)) == "24 12:01"
    assert wall(next_moment("2026-10-31 09:00", now, BERLIN)) == "31 09:00"
    assert parse_time("7:05") == time(7, 5)
    with pytest.raises(ValueError, match="is no moment"):
        next_moment("soon", now, BERLIN)
