"""Show the queue: what runs, how far it is, and why each waiting job waits."""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Annotated, Any

import typer

from autotune.commands.job_status import to_json
from autotune.commands.jobs import no_jobs, select
from autotune.commands.terminal import Json, say, show, tell, workspace_of
from autotune.commands.watching import Screen


def command(
    context: typer.Context,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB...]", help="A number, a range such as 3,5-8, a name, last or all."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Do not shorten long names.")] = False,
    as_json: Json = False,
) -> None:
    """Show the queue: what runs, how far it is, and why each waiting job waits."""
    workspace = workspace_of(context)
    if not watch:
        gc.disable()  # what a look makes lives until the process ends, and looking through it takes a sixth of the time
    screen = Screen(workspace, lambda: select(workspace, jobs) if jobs else None, verbose, watch)

    def look() -> list[Any]:
        return [json.dumps(to_json(screen.snapshot()))] if as_json else screen.look()

    if watch and sys.stdout.isatty() and not as_json:
        from rich.console import Group
        from rich.live import Live

        with Live(Group(*look()), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(1)
                live.update(Group(*look()), refresh=True)
    while True:
        tell(look()[0]) if as_json else show(*look(), fitted=True)
        if not watch:
            break
        time.sleep(1)
    if not as_json and not workspace.job_list():
        say(no_jobs(workspace))
