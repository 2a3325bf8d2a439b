"""The command `report`."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.report.facts import Report
from autotune.commands.report.section import Section
from autotune.commands.report.sections import sections
from autotune.commands.terminal import AnyJobs, Json, say, show, tell, workspace_of
from autotune.errors import BadInput, disk_problem
from autotune.storage.atomic import check_output, publish_bytes


def _write_csv(report: Report, folder: Path) -> list[Path]:
    """Write the tables of all jobs and return the files. A table without rows has a line with its columns.

    Raises:
        BadInput: The folder is a file, or something in it that is no file has the name of a table.
        DiskProblem: A file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--csv {folder} is a file; give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_problem("make", folder, error) from error
    tables: dict[str, list[tuple[int, Section]]] = {}
    for job in report.jobs:
        for part in sections(job):
            tables.setdefault(part.name, []).append((job.job.id, part))
    paths = [folder / f"{name}.csv" for name in tables]
    for path in paths:
        check_output(path)
    for path, of_jobs in zip(paths, tables.values(), strict=True):
        publish_bytes(path, _text(of_jobs).encode())
    return paths


def _text(of_jobs: list[tuple[int, Section]]) -> str:
    """Return a table of several jobs. One may have columns that another lacks, such as a runtime that was timed."""
    file = io.StringIO()
    columns = dict.fromkeys(column for _, part in of_jobs for column in part.columns)
    writer = csv.DictWriter(file, ["job", *columns])
    writer.writeheader()
    for job, part in of_jobs:
        writer.writerows({"job": job, **dict(zip(part.columns, row, strict=True))} for row in part.rows)
    return file.getvalue()


def command(
    context: typer.Context,
    jobs: AnyJobs = None,
    every: Annotated[bool, typer.Option("--all", help="Report on all jobs.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with charts, in one file.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write a CSV file for each table.")] = None,
    as_json: Json = False,
) -> None:
    """Show what jobs achieved and where their time went. Without options, print a table of the time."""
    from autotune.commands import render, wall_time
    from autotune.commands.jobs import select
    from autotune.commands.report import charts, facts
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
        say(f"wrote {len(_write_csv(report, csv))} files to {csv}")
    if as_json:
        tell(json.dumps(facts.to_json(report)))
