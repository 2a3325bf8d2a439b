"""When the daemon may start stages: always, or in a window of each day, on this machine's clock."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from autotune.planning.view import Plan
from autotune.planning.waiting import for_window, waits_for
from autotune.planning.windows import DailyWindow, parse_window


@dataclass(frozen=True)
class Hours:
    """`window` is None for always. Moments are epoch seconds."""

    window: DailyWindow | None = None

    @classmethod
    def parse(cls, text: str) -> Hours:
        """`22:00-07:00`, or nothing for always.

        Raises:
            ValueError: it is neither.
        """
        return cls(parse_window(text) if text else None)

    def limit(self, now: float) -> float | None:
        """By when a stage that starts now has to end: what the planner calls `closes_at`."""
        if self.window is None:
            return None
        closes = self.window.closes_at(now)
        return -math.inf if closes is None else closes

    def changes_at(self, now: float) -> float:
        """When the window next opens or closes; infinity for never."""
        if self.window is None:
            return math.inf
        return self.window.closes_at(now) or self.window.opens_at(now)

    def after(self, now: float, seconds: float) -> float:
        """When so many seconds have passed of those in which stages may start."""
        return self.window.after(now, seconds) if self.window else now + seconds

    def explained(self, plan: Plan, now: float) -> Plan:
        """A plan made under `limit`, which says of all that would not end in time what they wait for."""
        if self.window is None:
            return plan
        late = set(plan.late)
        if self.window.closes_at(now) is None:
            late |= {job for job, reason in plan.waits.items() if waits_for(reason) != "device"}
        reason = for_window(time.strftime("%H:%M", time.localtime(self._next_opening(self.window, now))))
        waits = {job: reason if job in late else why for job, why in plan.waits.items()}
        return replace(plan, waits=waits, late=frozenset(late))

    @staticmethod
    def _next_opening(window: DailyWindow, now: float) -> float:
        return window.opens_at(window.closes_at(now) or now)
