"""Tables that fit the terminal: long names lose their middle, and less important columns are left out.

Where there is no room for the columns side by side, each row becomes lines of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

_SHORTEST_NAME = 12
# What a sentence gets where there is little room; the rest of it is folded.
_SENTENCE = 24
_NARROWEST = 8  # columns of names and sentences that are folded to less are no longer read
_ENDLESS = 100_000
_GAP = "  "
_EMPTY = ("", "-")


def short(name: str, longest: int) -> str:
    """Return a name of at most so many characters. A long one loses its middle, since names differ at both ends."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[len(name) - half :]}"


class Fitted:
    """A table whose names are shortened as far as it takes to fit the terminal."""

    def __init__(
        self,
        builds: Sequence[Callable[[int], Table]],
        names: Sequence[str] = (),
        sentences: Sequence[str] = (),
        verbose: bool = False,
    ) -> None:
        """Take what makes the table with names of at most so many characters.

        Args:
            builds: Each makes the table; the first that fits is shown, or else the last. The last has plain text only.
            names: The names in it.
            sentences: The texts in it that may be folded.
            verbose: Whether names stay whole in any case.
        """
        self._builds, self._verbose = builds, verbose
        self._longest = max(map(len, names), default=0)
        self._sentence = max(map(len, sentences), default=0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        """Yield the table for this console, or its rows one below the other."""
        spare = max(0, self._longest - _SHORTEST_NAME)
        for build in self._builds:
            excess = self._excess(build, _SENTENCE, console, options)
            if excess <= spare:
                break
        if self._excess(build, _NARROWEST, console, options) > max(0, self._longest - _NARROWEST):
            yield from _one_below_the_other(build(self._longest), options.max_width)
        elif not excess or self._verbose:
            yield build(self._longest)
        else:
            yield build(max(_SHORTEST_NAME, self._longest - excess))

    def _excess(self, build: Callable[[int], Table], sentence: int, console: Console, options: ConsoleOptions) -> int:
        """Return how much too wide a table with whole names is whose sentences are folded to so many characters."""
        whole = build(self._longest).__rich_measure__(console, options.update(max_width=_ENDLESS)).maximum
        return max(0, whole - max(0, self._sentence - sentence) - options.max_width)


def _one_below_the_other(table: Table, width: int) -> Iterator[Text]:
    """Yield each row of a table as lines of its headers and cells, without empty cells."""
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        named = zip((str(column.header) for column in table.columns), cells, strict=True)
        parts = [_named(header, cell) for header, cell in named if str(cell) not in _EMPTY]
        yield from _packed(parts, width)


def _named(header: str, cell: RenderableType) -> Text:
    from rich.text import Text

    return Text.assemble((f"{header} ", "bold"), cell if isinstance(cell, Text) else str(cell))


def _packed(parts: Sequence[Text], width: int) -> Iterator[Text]:
    """Yield lines with as many parts as fit on each. A part that is too long for a line is folded."""
    from rich.text import Text

    line = Text()
    for part in parts:
        if line and line.cell_len + len(_GAP) + part.cell_len > width:
            yield line
            line = Text(_GAP)
        elif line:
            line.append(_GAP)
        line.append_text(part)
    yield line
