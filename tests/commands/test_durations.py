"""Durations and deadlines as users write them."""

from __future__ import annotations

import pytest

from autotune.commands.durations import parse_deadline, parse_duration
from autotune.errors import BadInput


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), (" 2h ", 7200), ("", None)])
def test_a_number_and_a_unit(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["30", "m", "-5m", "0m", "1e3s", "5 m", "30min", "nan", "٣m"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="write 90s, 30m or 2h"):
        parse_duration(text)


def test_a_deadline_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(BadInput, match="too far off"):
        parse_deadline("9999-12-31T23:59", 0.0)


def test_a_deadline_that_is_past_is_refused() -> None:
    with pytest.raises(BadInput, match="is past"):
        parse_deadline("2020-01-01T00:00", 1.7e9)
