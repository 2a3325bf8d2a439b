"""Durations as users write them: `90s`, `30m`, `2h`."""

from __future__ import annotations

import re

from autotune.errors import BadInput

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float | None:
    """Return a duration in seconds; None for an empty text.

    Raises:
        BadInput: It is no duration, or is zero.
    """
    if not text:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise BadInput(f"{text!r} is no duration; write 90s, 30m or 2h")
    return float(match[1]) * _SECONDS[match[2]]
