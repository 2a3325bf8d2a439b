"""Print to the terminal, show progress, and find the workspace: what all verbs need."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from autotune.errors import one_line, printable
from autotune.storage.paths import Workspace

JOBS_HELP = "A number, a range such as 3,5-8, a name, last or all."
Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help=JOBS_HELP)]
OneJob = Annotated[str, typer.Argument(metavar="JOB", help="A number, a name or last.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FILE_WIDTH = 200  # columns of a table in a file or a pipe, which has no screen to fit on
_LEAST_WIDTH = 72  # on a narrower screen whole columns would vanish; lines that go on in the next row do not


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
    console.width = console.width if fitted else max(console.width, _LEAST_WIDTH)
    for item in renderables:
        console.print(item)


@contextlib.contextmanager
def steps(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show the current step of a long operation on a terminal. Elsewhere nothing is shown.

    Args:
        quiet: Whether to show nothing.

    Yields:
        A function to call with a description of each step.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(Text(one_line(text)))


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
