"""Durations and moments as users write them."""

from __future__ import annotations

import pytest

from autotune.commands.durations import duration, parse_age, parse_duration, parse_moment
from autotune.errors import BadInput

DAY_S = 86400.0


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), (" 2h ", 7200)])
def test_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (59.4, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3661, "1h01m"),
        (7199, "2h00m"),
        (-5, "0s"),
    ],
)
def test_shown_durations_say_their_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("text", ["", "30", "m", "-5m", "0m", "1e3s", "5 m", "30min", "nan", "٣m"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="write 90s, 30m or 2h"):
        parse_duration(text)


def test_a_deadline_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(BadInput, match="too far off"):
        parse_moment("--deadline", "9999-12-31T23:59", 0.0)


@pytest.mark.parametrize("option", ["--deadline", "--until"])
def test_a_moment_that_is_past_is_refused(option: str) -> None:
    with pytest.raises(BadInput, match=f"{option} '2020-01-01T00:00' is past"):
        parse_moment(option, "2020-01-01T00:00", 1.7e9)


class TestAge:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("7d", 7 * DAY_S), ("12h", 43200), ("30m", 1800), ("5s", 5), ("2w", 14 * DAY_S), ("0d", 0)],
    )
    def test_it_is_a_number_and_a_unit(self, text: str, seconds: float) -> None:
        assert parse_age(text) == seconds

    @pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-1d", "1.5h", "7y", "7D", "7d\n", "٣d", "9" * 5000 + "d"])
    def test_anything_else_is_refused_with_an_example(self, text: str) -> None:
        with pytest.raises(BadInput, match="such as 7d"):
            parse_age(text)
