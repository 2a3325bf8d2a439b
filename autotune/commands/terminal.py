"""Print to the terminal, show progress, and find the workspace: what all verbs need."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from autotune.errors import one_line, printable
from autotune.storage.paths import Workspace

JOBS_HELP = "A number, a range such as 3,5-8, a name, last or all."
Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help=JOBS_HELP)]
OneJob = Annotated[str, typer.Argument(metavar="JOB", help="A number, a name or last.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AnyJobs = Annotated[list[str] | None, typer.Argument(metavar="[JOB...]", help=JOBS_HELP)]
_FILE_WIDTH = 200  # columns of a table in a file or a pipe, which has no screen to fit on
_MIN_WIDTH = 72  # on a narrower screen whole columns would vanish; lines that go on in the next row do not


def workspace_of(context: typer.Context) -> Workspace:
    """Return the workspace of the command line.

    Raises:
        BadInput: It is not a folder.
    """
    from autotune.commands.jobs import open_workspace  # here, because every command loads this module

    root: Workspace = context.obj
    return open_workspace(root.root)


def say(text: str) -> None:
    """Print a message to standard error."""
    typer.echo(printable(text), err=True)


def tell(text: str) -> None:
    """Print an answer to standard output."""
    typer.echo(printable(text))


def show(*renderables: Any, fitted: bool = False) -> None:
    """Print tables and text to standard output. `fitted` says that the tables fit any screen."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
    console.width = console.width if fitted else max(console.width, _MIN_WIDTH)
    for item in renderables:
        console.print(item)


@contextlib.contextmanager
def steps(quiet: bool = False, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """Show the current step of a long operation on a terminal, with the time since its start.

    Args:
        quiet: Whether to show nothing.
        lines: Whether a line is printed for each step where there is no terminal. Otherwise nothing is shown there.

    Yields:
        A function to call with a description of each step.
    """
    if quiet or not (lines or sys.stderr.isatty()):
        yield lambda text: None
        return
    from autotune.commands.durations import duration  # here, because every command loads this module

    started = time.monotonic()
    if not sys.stderr.isatty():
        yield lambda text: say(f"{duration(time.monotonic() - started):>6}  {one_line(text)}")
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn
    from rich.text import Text

    class Passed(ProgressColumn):
        def render(self, task: object) -> Text:
            return Text(duration(time.monotonic() - started))

    columns = SpinnerColumn(), Passed(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        shown = progress.add_task("starting", total=None)
        yield lambda text: progress.update(shown, description=one_line(text))


@contextlib.contextmanager
def bar() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal. Elsewhere nothing is shown.

    Yields:
        A function to call with how much is done, and how much there is to do.
    """
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("kills", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
