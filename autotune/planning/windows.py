"""Times of day: the next 07:00, daily windows such as 22:00-07:00, and plans that keep to one.

Clocks are put forward and back, so a window has no fixed length: its ends are worked out for each day. Times are epoch
seconds. A time zone of None is that of this machine.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, tzinfo

from autotune.planning.view import StagePlan
from autotune.reasons import Reason

# After this many windows the exact end does not matter.
_MAX_WINDOWS = 400
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True)
class DailyWindow:
    """The time from `start` to `end` on each day, or to `end` on the next day if that is earlier.

    If both are equal, the window is always open.
    """

    start: time
    end: time

    def closes_at(self, now: float, zone: tzinfo | None = None) -> float | None:
        """Return when the window that is open now closes; None if it is closed."""
        today = datetime.fromtimestamp(now, zone).date()
        for day in (today - timedelta(days=1), today):
            begins, ends = self._on(day, zone)
            if begins <= now < ends:
                return ends
        return None

    def opens_at(self, now: float, zone: tzinfo | None = None) -> float:
        """Return when the window opens next; `now` if it is open."""
        if self.closes_at(now, zone) is not None:
            return now
        today = datetime.fromtimestamp(now, zone).date()
        return next(opening for days in range(3) if (opening := self._on(today + timedelta(days=days), zone)[0]) >= now)

    def after(self, now: float, seconds: float, zone: tzinfo | None = None) -> float:
        """Return when the window will have been open for so many seconds from now on."""
        moment = self.opens_at(now, zone)
        for _ in range(_MAX_WINDOWS):
            closes = self.closes_at(moment, zone)
            if closes is None or seconds <= closes - moment:
                break
            seconds -= closes - moment
            moment = self.opens_at(closes, zone)
        return moment + seconds

    def _on(self, day: date, zone: tzinfo | None) -> tuple[float, float]:
        """Return when the window that opens on a day opens and closes."""
        last = day if self.start < self.end else day + timedelta(days=1)
        return _moment(day, self.start, zone), _moment(last, self.end, zone)


@dataclass(frozen=True)
class Hours:
    """The times at which a daemon may start stages. `window` is None for always."""

    window: DailyWindow | None = None

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Read a window such as `22:00-07:00`; an empty text stands for always.

        Raises:
            ValueError: The text is no window.
        """
        return cls(parse_window(text) if text else None)

    def limit(self, now: float) -> float | None:
        """Return when a stage that starts now has to end by; None for no limit, minus infinity to start none."""
        if self.window is None:
            return None
        closes = self.window.closes_at(now)
        return -math.inf if closes is None else closes

    def changes_at(self, now: float) -> float:
        """Return when the window next opens or closes; infinity for never."""
        if self.window is None:
            return math.inf
        return self.window.closes_at(now) or self.window.opens_at(now)

    def after(self, now: float, seconds: float) -> float:
        """Return when `seconds` have passed in which stages may start."""
        return self.window.after(now, seconds) if self.window else now + seconds

    def explained(self, plan: StagePlan, now: float) -> StagePlan:
        """Return a plan made under `limit` in which the jobs whose stages would end too late wait for the window."""
        if self.window is None:
            return plan
        late = set(plan.late)
        if self.window.closes_at(now) is None:
            late |= {job for job, reason in plan.waits.items() if reason.topic != "device"}
        closed = Reason("window", opens_at=self._next_opening(self.window, now))
        waits = {job: closed if job in late else reason for job, reason in plan.waits.items()}
        return replace(plan, waits=waits, late=frozenset(late))

    @staticmethod
    def _next_opening(window: DailyWindow, now: float) -> float:
        return window.opens_at(window.closes_at(now) or now)


def parse_window(text: str) -> DailyWindow:
    """Return a window from its text, such as `22:00-07:00`.

    Raises:
        ValueError: The text is no window.
    """
    start, dash, end = text.partition("-")
    if not dash:
        raise ValueError(f"{text!r} is no window; give one such as 22:00-07:00")
    return DailyWindow(parse_time(start), parse_time(end))


def parse_time(text: str) -> time:
    """Return a time of day from its text, such as `07:00`.

    Raises:
        ValueError: The text is no time of day.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no time of day; give one such as 07:00")
    return time(int(match[1]), int(match[2]))


def next_moment(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Return when the clock next shows a time of day, or when it shows a date and time.

    Args:
        text: A time such as `07:00`, or a date and time such as `2026-03-01 07:00`.
        zone: The time zone, unless the text names one.

    Raises:
        ValueError: The text is neither.
    """
    if not _TIME.fullmatch(text.strip()):
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise ValueError(f"{text!r} is no moment; give one such as 07:00 or 2026-03-01T07:00") from error
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    wanted = parse_time(text)
    today = datetime.fromtimestamp(now, zone).date()
    return next(begin for days in range(3) if (begin := _moment(today + timedelta(days=days), wanted, zone)) > now)


def _moment(day: date, clock: time, zone: tzinfo | None) -> float:
    """Return the first moment of a day at which the clock shows a time.

    A time that the clock skips counts as that much after the skip.
    """
    return datetime.combine(day, clock, zone).timestamp()
