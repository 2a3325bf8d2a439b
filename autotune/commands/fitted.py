"""Tables that fit the terminal: long names lose their middle, and less important columns are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

_SHORTEST_NAME = 12
# What a sentence gets where there is little room; the rest of it is folded.
_SENTENCE = 24
_ENDLESS = 100_000


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
        names: Sequence[str],
        sentences: Sequence[str] = (),
        verbose: bool = False,
    ) -> None:
        """Take what makes the table with names of at most so many characters.

        Args:
            builds: Each makes the table; the first that fits is shown, or else the last.
            names: The names in it.
            sentences: The texts in it that may be folded.
            verbose: Whether names stay whole in any case.
        """
        self._builds, self._verbose = builds, verbose
        self._longest = max(map(len, names), default=0)
        self._foldable = max(0, max(map(len, sentences), default=0) - _SENTENCE)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Yield the table for this console."""
        spare = max(0, self._longest - _SHORTEST_NAME)
        for build in self._builds:
            table = build(self._longest)
            whole = table.__rich_measure__(console, options.update(max_width=_ENDLESS)).maximum
            excess = max(0, whole - self._foldable - options.max_width)
            if excess <= spare:
                break
        yield table if not excess or self._verbose else build(max(_SHORTEST_NAME, self._longest - excess))
