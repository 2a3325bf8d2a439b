"""How long the stages of a job have run, whatever ran at once counting once."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class WorkedTime:
    """The length of the union of intervals, which are added in the order in which they end.

    Attributes:
        seconds: The length.
    """

    seconds: float = 0.0
    _intervals: list[tuple[float, float]] = field(default_factory=list)  # disjoint, in order

    def add(self, began: float, ended: float) -> None:
        """Take in an interval. One that ends before it began, since the clock was put back, counts for nothing."""
        if ended <= began:
            return
        while self._intervals and self._intervals[-1][1] >= began:
            first, last = self._intervals.pop()
            self.seconds -= last - first
            began, ended = min(began, first), max(ended, last)
        self._intervals.append((began, ended))
        self.seconds += ended - began
