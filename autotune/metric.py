"""What a job's candidates are measured by: the time of a run, or any other number above 0 that its command prints.

Logs and planning know times only, of which the smaller is the better. Another metric is kept in their place: one of
which smaller is better in millionths of its unit, and one of which larger is better as its reciprocal. So shares and
ratios mean the same for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from autotune.errors import InvalidData
from autotune.schema import text

_US_PER: Final = {"s": 1e6, "ms": 1e3, "us": 1.0}
_US_PER_UNIT: Final = 1e6
# A rate of 1e9 a second is kept as a second. So rates that are common give numbers that are no rounding errors.
_RECIPROCAL: Final = 1e15
_SMALLEST: Final = 1e-2
_LARGEST: Final = 1e18


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: What it is called.
        unit: Its unit. Of `s`, `ms` and `us` it is a time.
        better: Which values are better.
    """

    name: Annotated[str, text("Its name.", r"^[A-Za-z_][A-Za-z0-9_ -]{0,31}\Z", "a name of letters and digits")] = (
        "time"
    )
    unit: Annotated[str, text("Its unit.", r"^[!-~]{0,16}\Z", "up to 16 printable characters without blanks")] = "ms"
    better: Literal["smaller", "larger"] = "smaller"

    @property
    def is_time(self) -> bool:
        """Whether logs have it as it is."""
        return self.better == "smaller" and self.unit in _US_PER

    def to_us(self, value: float) -> float:
        """Return what stands for a value in logs, in microseconds.

        Raises:
            InvalidData: It is not above 0, or too small or too large a number.
        """
        if not (math.isfinite(value) and value > 0):
            raise InvalidData(f"{self.name} is {value:g}; it must be a number above 0")
        kept = _RECIPROCAL / value if self.better == "larger" else value * _US_PER.get(self.unit, _US_PER_UNIT)
        if not _SMALLEST < kept < _LARGEST:
            raise InvalidData(f"{self.name} is {value:g}, which is out of range; give it another unit")
        return kept

    def from_us(self, us: float) -> float:
        """Return the value that stands in logs as so many microseconds."""
        return _RECIPROCAL / us if self.better == "larger" else us / _US_PER.get(self.unit, _US_PER_UNIT)

    def text(self, us: float, time: str = "") -> str:
        """Return the value with its unit, for people.

        Args:
            us: What stands for it in logs, in microseconds.
            time: How it is written where it is a time; by default in the metric's own unit.
        """
        return time if time and self.is_time else f"{self.from_us(us):.4g} {self.unit}".rstrip()

    @property
    def column(self) -> str:
        """The head of a column with its values."""
        return "latency in ms" if self.is_time else f"{self.name} in {self.unit}" if self.unit else self.name

    def in_column(self, ms: float | None) -> float | None:
        """Return the value for such a column.

        Args:
            ms: What stands for it in logs, in milliseconds; None for no value.
        """
        return ms if ms is None or self.is_time else self.from_us(1e3 * ms)
