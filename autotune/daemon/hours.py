"""When the daemon may start stages: always, or in a window of each day, by the local time of this machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autotune.planning.view import Plan
from autotune.planning.waiting import for_window
from autotune.planning.windows import DailyWindow, parse_window


@dataclass(frozen=True)
class Hours:
    """The times at which stages may start. `window` is None for always. Points in time are epoch seconds."""

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

    def explained(self, plan: Plan, now: float) -> Plan:
        """Return a plan made under `limit` in which the jobs whose stages would end too late wait for the window."""
        if self.window is None:
            return plan
        late = set(plan.late)
        if self.window.closes_at(now) is None:
            late |= {job for job, reason in plan.waits.items() if reason.topic != "device"}
        closed = for_window(self._next_opening(self.window, now))
        waits = {job: closed if job in late else reason for job, reason in plan.waits.items()}
        return replace(plan, waits=waits, late=frozenset(late))

    @staticmethod
    def _next_opening(window: DailyWindow, now: float) -> float:
        return window.opens_at(window.closes_at(now) or now)
