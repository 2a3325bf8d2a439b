"""What every command needs of its surroundings: the workspace that was named, and where to print."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from autotune.errors import BadInput
from autotune.storage.paths import Workspace

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FILE_WIDTH = 200  # a table in a file or a pipe is not folded to the width of a screen


def workspace_of(context: typer.Context) -> Workspace:
    """The workspace that the command line names.

    Raises:
        BadInput: it is not a folder.
    """
    root: Workspace = context.obj
    if not root.root.is_dir():
        raise BadInput(f"the workspace {root.root} is not a folder")
    return root


def say(text: str) -> None:
    """A message, to standard error."""
    typer.echo(text, err=True)


def show(*renderables: Any) -> None:
    """Tables and text, to standard output."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
    for item in renderables:
        console.print(item)
