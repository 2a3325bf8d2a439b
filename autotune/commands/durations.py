"""Parse and write times as users write them.

Durations are `90s`, `30m` or `2h`, and are shown as `4m05s` or `2h03m`; ages `12h` or `7d`; latencies `800us`, `5ms` or
`0.2s`; moments `07:00` or `2026-03-01T07:00`.
"""

from __future__ import annotations

import re

from autotune.errors import BadInput
from autotune.planning.windows import next_moment
from autotune.schema import LAST_MOMENT

_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([smh])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_AGE = re.compile(r"([0-9]{1,9})([smhdw])")
_AGE_SECONDS = {**_SECONDS, "d": 86400.0, "w": 7 * 86400.0}
_LATENCY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(us|ms|s)")
_MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def parse_duration(text: str) -> float:
    """Return a duration in seconds.

    Raises:
        BadInput: It is no duration, or is zero.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise BadInput(f"{text!r} is not a duration; write 90s, 30m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def duration(seconds: float | None) -> str:
    """Return a duration such as `3s`, `4m05s` or `2h03m`; a dash for None."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))  # negative if the clock was put back
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    minutes = round(whole / 60)
    return f"{minutes // 60}h{minutes % 60:02}m"


def parse_age(text: str) -> float:
    """Return an age in seconds.

    Raises:
        BadInput: It is none.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        raise BadInput(f"--older-than {text!r}: give a number and s, m, h, d or w, such as 7d")
    return int(match[1]) * _AGE_SECONDS[match[2]]


def parse_latency(text: str) -> float:
    """Return the time of a run of a model in milliseconds.

    Raises:
        BadInput: It is none, or is zero.
    """
    match = _LATENCY.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise BadInput(f"{text!r} is not a latency; write 5ms, 800us or 0.2s")
    return float(match[1]) * _MILLISECONDS[match[2]]


def parse_moment(option: str, text: str, now: float) -> float:
    """Parse a moment to come: `07:00` for the next time it is seven o'clock, or a date and a time.

    Args:
        option: What the text was given with, such as `--deadline`.
        now: The time now, in epoch seconds.

    Returns:
        The moment in epoch seconds.

    Raises:
        BadInput: It is neither, or is past or too far off.
    """
    try:
        moment = next_moment(text, now)
    except (ValueError, OverflowError, OSError) as error:
        raise BadInput(f"{option}: {error}") from error
    if moment <= now:
        raise BadInput(f"{option} {text!r} is past; give a later one")
    if moment > LAST_MOMENT:
        raise BadInput(f"{option} {text!r} is too far off; leave it out")
    return moment
