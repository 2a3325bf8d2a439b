"""Times of day on the wall clock: the next 07:00, and nightly windows such as 22:00-07:00.

Clocks are put forward and back, so a window is never so many seconds long: its ends are found anew for each day.
A time zone of None is that of this machine, with its own rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo

# Who waits for more windows than that does not care for the day.
_MOST_WINDOWS = 400
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True)
class Window:
    """From one time of day to another, over midnight where the second is the earlier. Equal ends: the whole day."""

    start: time
    end: time

    def closes_at(self, now: float, zone: tzinfo | None = None) -> float | None:
        """When the window that is open now closes, as an epoch second; None while none is open."""
        today = datetime.fromtimestamp(now, zone).date()
        for day in (today - timedelta(days=1), today):
            begins, ends = self._on(day, zone)
            if begins <= now < ends:
                return ends
        return None

    def opens_at(self, now: float, zone: tzinfo | None = None) -> float:
        """When the next window opens; now, while one is open."""
        if self.closes_at(now, zone) is not None:
            return now
        today = datetime.fromtimestamp(now, zone).date()
        return next(at for days in range(3) if (at := self._on(today + timedelta(days=days), zone)[0]) >= now)

    def after(self, now: float, seconds: float, zone: tzinfo | None = None) -> float:
        """When so many seconds have passed of those in which a window is open."""
        at = self.opens_at(now, zone)
        for _ in range(_MOST_WINDOWS):
            closes = self.closes_at(at, zone)
            if closes is None or seconds <= closes - at:
                break
            seconds -= closes - at
            at = self.opens_at(closes, zone)
        return at + seconds

    def _on(self, day: date, zone: tzinfo | None) -> tuple[float, float]:
        """The window that opens on a day."""
        last = day if self.start < self.end else day + timedelta(days=1)
        return _moment(day, self.start, zone), _moment(last, self.end, zone)


def parse_window(text: str) -> Window:
    """`22:00-07:00`.

    Raises:
        ValueError: it is no such thing.
    """
    start, dash, end = text.partition("-")
    if not dash:
        raise ValueError(f"{text!r} is no window; give one such as 22:00-07:00")
    return Window(parse_time(start), parse_time(end))


def parse_time(text: str) -> time:
    """`07:00`.

    Raises:
        ValueError: it is no time of day.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no time of day; give one such as 07:00")
    return time(int(match[1]), int(match[2]))


def next_moment(text: str, now: float, zone: tzinfo | None = None) -> float:
    """The next time that the clock shows a time of day, or a date and time such as `2026-03-01 07:00`.

    Raises:
        ValueError: the text is neither.
    """
    if not _TIME.fullmatch(text.strip()):
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise ValueError(f"{text!r} is no moment; give one such as 07:00 or 2026-03-01T07:00") from error
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    wanted, today = parse_time(text), datetime.fromtimestamp(now, zone).date()
    return next(at for days in range(3) if (at := _moment(today + timedelta(days=days), wanted, zone)) > now)


def _moment(day: date, at: time, zone: tzinfo | None) -> float:
    """The first moment of a day at which the clock shows a time; one that is skipped counts as that much later."""
    return datetime.combine(day, at, zone).timestamp()
