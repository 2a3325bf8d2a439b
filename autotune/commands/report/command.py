"""The command `report`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.terminal import Json, say, show, tell, workspace_of
from autotune.errors import BadInput


def command(
    context: typer.Context,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB...]", help="A number, a range such as 3,5-8, a name, last or all."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Report on all jobs.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with charts, in one file.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write a CSV file for each table.")] = None,
    as_json: Json = False,
) -> None:
    """Show what jobs achieved and where their time went. Without options, print a table of the time."""
    from autotune.commands import render
    from autotune.commands.jobs import select
    from autotune.commands.report import charts, csv_files, facts, wall_time
    from autotune.commands.report.page import page
    from autotune.storage.atomic import publish_bytes

    workspace = workspace_of(context)
    if bool(jobs) == every:
        raise BadInput("give JOB..., or --all")
    if html is not None:
        charts.check(html)
    chosen = workspace.job_list() if every else select(workspace, jobs or [])
    now = time.time()
    if html is None and csv is None and not as_json:
        return show(render.times(wall_time.reports(workspace, chosen, now)))
    report = facts.gather(workspace, chosen, now)
    if html is not None:
        publish_bytes(html, page(report, whole=len(chosen) == 1).encode())
        say(f"wrote {html}")
    if csv is not None:
        say(f"wrote {len(csv_files.write(report, csv))} files to {csv}")
    if as_json:
        tell(json.dumps(facts.to_json(report)))
