"""The report as one web page: no script, no font and no image from elsewhere, and a policy that forbids them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from autotune.commands.durations import duration
from autotune.commands.report import charts
from autotune.commands.report.facts import JobReport, Report
from autotune.commands.report.section import Cell, Section
from autotune.commands.report.sections import answers, sections
from autotune.version import __version__

# What the page of a queue says of each job. The rest is in the page of the job.
_SHORT = ("latency", "tasks", "wall_time")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: Report, whole: bool) -> str:
    """Return the page.

    Args:
        report: What it shows.
        whole: Whether it has every section of every job, or the most important ones.
    """
    title = _title(report)
    body = [_overview(report)] if len(report.jobs) != 1 else []
    body += [_job(job, whole) for job in report.jobs]
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report.at))
    style = files("autotune.commands.report").joinpath("page.css").read_text()
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header><h1>{_text(title)}</h1>\n<p class="quiet">Written {written} from {_text(report.workspace)}'
        f" by autotune {__version__}.</p></header>\n<main>\n{''.join(body)}</main>\n</body>\n</html>\n"
    )


def _title(report: Report) -> str:
    if len(report.jobs) == 1:
        return f"Job {report.jobs[0].job.id}: {report.jobs[0].job.name}"
    return f"{len(report.jobs)} jobs"


def _overview(report: Report) -> str:
    columns = ("job", "name", "target", "state", "trials", "budget", "latency, ms", "exported, ms", "seconds", "why")
    rows = tuple(_overview_row(job) for job in report.jobs)
    done = sum(job.job.state == "done" for job in report.jobs)
    running = sum(job.job.state == "running" for job in report.jobs)
    says = f"{done} of {len(report.jobs)} jobs are done and {running} run. The latency is the sum of the tasks' best."
    names = [(job.job.id, _text(job.job.name)) for job in report.jobs]
    links = "".join(f'<li><a href="#job-{id}">{id} {name}</a></li>' for id, name in names)
    table = _table(Section("queue", "Queue", says, columns, rows))
    nav = f'<nav aria-label="Jobs"><ul>{links}</ul></nav>'
    return f'<section id="queue"><h2>Queue</h2><p>{says}</p>{table}{nav}</section>\n'


def _overview_row(job: JobReport) -> tuple[Cell, ...]:
    exported = job.references.tuned_ms if job.references else None
    shown = job.job
    return (
        shown.id, shown.name, shown.target, shown.state, job.trials, shown.trials_total, job.latency_ms, exported,
        job.times.wall_s, shown.reason,
    )  # fmt: skip


def _job(job: JobReport, whole: bool) -> str:
    id = job.job.id
    shown = [part for part in sections(job) if whole or part.name in _SHORT]
    links = "".join(f'<li><a href="#job-{id}-{part.name}">{_text(part.title)}</a></li>' for part in shown)
    hint = "" if whole else f'<p class="quiet">All of it: <code>autotune report {id} --html FILE</code></p>'
    return (
        f'<article id="job-{id}" aria-labelledby="job-{id}-name">\n'
        f'<h2 id="job-{id}-name">{_text(job.job.name)}: {_text(job.job.state)}</h2>\n{_facts(job)}'
        f'{hint}<nav aria-label="Sections"><ul>{links}</ul></nav>\n'
        f"{''.join(_section(id, part) for part in shown)}</article>\n"
    )


def _facts(job: JobReport) -> str:
    least = "more than " if job.job.is_partial else ""
    latency = "none yet" if job.latency_ms is None else f"{least}{job.in_words(job.latency_ms)}"
    facts = {"latency (sum of the tasks)" if job.job.metric.is_time else job.job.metric.name: latency}
    if job.job.whole_model:
        facts["whole model"] = f"{job.job.whole_model.model_ms:.4g} ms"
    if job.references:
        facts["exported library"] = f"{job.references.tuned_ms:.4g} ms"
    facts |= {
        "trials": f"{job.trials} of {job.job.trials_total}",
        "since the submission" if not job.job.ended else "from submission to end": duration(job.times.wall_s),
        "expected to end in": duration(job.job.eta_seconds),
    }
    if job.job.eta_seconds is None:
        del facts["expected to end in"]
    cells = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items())
    why = f"<p>{_text(job.job.state.capitalize())}: {_text(job.job.reason)}</p>" if job.job.reason else ""
    said = "".join(f"<p>{_said(sentence)}</p>" for sentence in answers(job))
    return f'<dl class="facts">{cells}</dl>\n{why}{said}\n'


def _section(job: int, part: Section) -> str:
    drawings = part.draw() if part.draw else ()
    drawn = [charts.rename_ids(svg, f"c{job}-{part.name}-{n}-") for n, svg in enumerate(drawings)]
    figures = "".join(f"<figure>{svg}</figure>" for svg in drawn)
    plots = f'<div class="charts" role="img" aria-label="{_text(part.says)}">{figures}</div>\n' if drawn else ""
    table = _table(part) if part.rows else ""
    if table and part.folded:
        table = f"<details><summary>The numbers ({len(part.rows)} rows)</summary>{table}</details>"
    heading = f'<h3 id="job-{job}-{part.name}-title">{_text(part.title)}</h3>'
    return (
        f'<section id="job-{job}-{part.name}" aria-labelledby="job-{job}-{part.name}-title">{heading}\n'
        f"<p>{_said(part.says)}</p>\n{plots}{table}</section>\n"
    )


def _table(part: Section) -> str:
    numeric = [all(isinstance(row[place], (int, float, type(None))) for row in part.rows)
               for place in range(len(part.columns))]  # fmt: skip
    sides = [' class="n"' if right else "" for right in numeric]
    head = "".join(f'<th scope="col"{side}>{_text(name)}</th>' for name, side in zip(part.columns, sides, strict=True))
    body = "".join(f"<tr>{_cells(row, numeric)}</tr>\n" for row in part.rows)
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{_text(part.title)}: the numbers">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def _cells(row: Sequence[Cell], numeric: Sequence[bool]) -> str:
    return "".join(
        f'<td class="n">{number(cell)}</td>' if right else f"<td>{_text(number(cell))}</td>"
        for cell, right in zip(row, numeric, strict=True)
    )


def number(cell: Cell) -> str:
    """Return a cell for people: at least four digits of a fraction, all of a whole number, a dash for none."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    return str(cell)


def _said(sentence: str) -> str:
    """Return a sentence as HTML, with `commands` in a fixed pitch."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", _text(sentence))


def _text(text: str) -> str:
    """Return text as HTML. What no page can show becomes a question mark."""
    return escape("".join(sign if sign.isprintable() else "?" for sign in text))
