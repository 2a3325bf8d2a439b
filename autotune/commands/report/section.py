"""One part of a report: what it says, its table and its chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Cell = str | int | float | None


@dataclass(frozen=True)
class Section:
    """One part of a report.

    Attributes:
        name: Names its CSV file and its place in the page.
        title: Its heading.
        says: One or two sentences that say what the numbers mean.
        columns: The heads of the columns, each with its unit.
        rows: The cells; None where there is no value.
        draw: Draws its charts as SVG elements; None if it has none.
        folded: Whether the page shows the table only on request, since a chart stands before it.
    """

    name: str
    title: str
    says: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    draw: Callable[[], Sequence[str]] | None = None
    folded: bool = False
