"""The report as CSV: a folder with a file for each table, whose first column is the job."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from autotune.commands.report.facts import Report
from autotune.commands.report.sections import Section, sections
from autotune.errors import BadInput, disk_problem
from autotune.storage.atomic import check_output, publish_bytes


def write(report: Report, folder: Path) -> list[Path]:
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
    found = [folder / f"{name}.csv" for name in tables]
    for path in found:
        check_output(path)
    for path, parts in zip(found, tables.values(), strict=True):
        publish_bytes(path, _text(parts).encode())
    return found


def _text(parts: list[tuple[int, Section]]) -> str:
    """Return a table of several jobs. One may have columns that another lacks, such as a runtime that was timed."""
    file = io.StringIO()
    columns = dict.fromkeys(column for _, part in parts for column in part.columns)
    writer = csv.DictWriter(file, ["job", *columns])
    writer.writeheader()
    for job, part in parts:
        writer.writerows({"job": job, **dict(zip(part.columns, row, strict=True))} for row in part.rows)
    return file.getvalue()
