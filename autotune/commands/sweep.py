"""Sweep: a batch of jobs for all combinations of models and ways to tune them, which continues where it was killed."""

from __future__ import annotations

import csv
import html
import io
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.commands.daemon.background import DrainingDaemon
from autotune.commands.export.export import export
from autotune.commands.job_status import JobStatus, snapshot
from autotune.commands.submit.publish import Submission, submit
from autotune.commands.suite import Point, Suite, Way, read
from autotune.commands.terminal import Json, say, show, steps, tell, workspace_of
from autotune.config import Config, load_config
from autotune.errors import BadInput
from autotune.options import TuningOptions
from autotune.storage.atomic import check_output, publish_bytes
from autotune.storage.paths import JobPaths, Workspace

WAY_COLUMNS = ("MODEL", "TARGET", "STRATEGY", "SAMPLER", "TRIALS", "SEEDS", "MEAN MS", "SPREAD MS", "OF REFERENCE")
POINT_COLUMNS = ("JOB", "NAME", "SEED", "STATE", "TRIALS", "MS", "OF REFERENCE")
_MEANING = {
    "tasks": "the sum of the best times of the tasks, in milliseconds.",
    "model": "the median time of the exported model, in milliseconds.",
}
_POLL_S = 0.5

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """How the job of a point ended.

    Attributes:
        job: Its number.
        trials: The trials that it took.
        latency_ms: What it reached, in milliseconds; None without a time.
        onnxruntime_ms: What ONNX Runtime takes, where the model was timed as a whole.
    """

    job: int
    state: str
    trials: int
    latency_ms: float | None
    onnxruntime_ms: float | None = None


@dataclass(frozen=True)
class Summary:
    """The points of one way.

    Attributes:
        points: The number of points that reached a latency.
        mean_ms: The mean of their latencies in milliseconds; None without any.
        spread_ms: The sample standard deviation of their latencies; None of fewer than two.
        ratio: The mean over the mean of the reference, below 1 where it is faster; None where either is unknown.
    """

    way: Way
    points: int
    mean_ms: float | None
    spread_ms: float | None
    ratio: float | None


def run(workspace: Workspace, config: Config, suite: Suite, progress: Progress) -> dict[Point, Outcome]:
    """Submit the points that have no job yet, run the queue until all have ended, and return what came of them.

    Raises:
        BadInput: A model cannot be tuned. The points before it stay in the queue.
        WorkerCrashed: The daemon left before all jobs had ended.
    """
    _submit(workspace, config, suite, progress)
    jobs = {point: paths for point, paths in _jobs(workspace, suite).items() if paths is not None}
    _drain(workspace, list(jobs.values()), progress)
    ended = dict(zip(jobs, snapshot(workspace, list(jobs.values())), strict=True))
    return {point: _outcome(workspace, config, suite, jobs[point], job, progress) for point, job in ended.items()}


def _jobs(workspace: Workspace, suite: Suite) -> dict[Point, JobPaths | None]:
    """Return the job of each point; None where there is none yet."""
    by_name = {paths.name: paths for paths in workspace.job_list()}
    return {point: by_name.get(point.name) for point in suite.points}


def _submit(workspace: Workspace, config: Config, suite: Suite, progress: Progress) -> None:
    missing = [point for point, paths in _jobs(workspace, suite).items() if paths is None]
    for number, point in enumerate(missing, 1):
        progress(f"submitting {point.name} ({number} of {len(missing)})")
        submission = Submission(point.way.model, _options(suite, point), private=point.name)
        submit(workspace, config, submission, lambda step: None)


def _options(suite: Suite, point: Point) -> TuningOptions:
    way = point.way
    options = TuningOptions(
        target=way.target,
        name=point.name,
        trials=way.trials,
        seed=point.seed,
        strategy=way.strategy,
        sampler=way.sampler,
    )
    given = suite.inputs.get(way.model)
    return options if given is None else replace(options, inputs=given.inputs, dims=given.dims, values=given.values)


def _drain(workspace: Workspace, jobs: list[JobPaths], progress: Progress) -> None:
    """Run the queue until the jobs have ended; where a daemon serves the workspace, that one does the work."""
    left = _unfinished(workspace, jobs)
    with DrainingDaemon(workspace) if left else nullcontext() as daemon:
        while daemon is not None and left:
            progress(f"{len(jobs) - len(left)} of {len(jobs)} points are done")
            daemon.keep_alive(left)
            time.sleep(_POLL_S)
            left = _unfinished(workspace, left)


def _unfinished(workspace: Workspace, jobs: list[JobPaths]) -> list[JobPaths]:
    return [paths for paths, job in zip(jobs, snapshot(workspace, jobs), strict=True) if not job.ended]


def _outcome(
    workspace: Workspace, config: Config, suite: Suite, paths: JobPaths, job: JobStatus, progress: Progress
) -> Outcome:
    outcome = Outcome(job.id, job.state, job.trials_done, job.latency_ms)
    if suite.latency == "tasks" or job.state != "done":
        return outcome
    progress(f"exporting {job.name}")
    latency = _latency_of_model(workspace, config, suite, paths)
    return Outcome(job.id, job.state, job.trials_done, latency["tuned_ms"], latency.get("onnxruntime_ms"))


def _latency_of_model(workspace: Workspace, config: Config, suite: Suite, paths: JobPaths) -> dict[str, float]:
    """Return the latencies in the report of an export, which is made unless there is one."""
    folder = workspace.sweep_exports(suite.name) / paths.name
    with suppress(OSError, ValueError, KeyError, TypeError):
        return dict(json.loads((folder / "report.json").read_bytes())["latency"])
    return dict(export(workspace, config, paths, folder, lambda step: None)["latency"])


def _expansion(workspace: Workspace, suite: Suite) -> None:
    from autotune.commands import render

    jobs = _jobs(workspace, suite)
    body = []
    for point in suite.points:
        way = point.way
        paths = jobs[point]
        place = (way.model.name, way.target, way.strategy, way.sampler, str(way.trials), str(point.seed))
        body.append((*place, point.name, "-" if paths is None else str(paths.id)))
    columns = ("MODEL", "TARGET", "STRATEGY", "SAMPLER", "TRIALS", "SEED", "NAME", "JOB")
    show(render.table(columns, body, ("TRIALS", "SEED", "JOB")))
    missing = sum(paths is None for paths in jobs.values())
    total = sum(point.way.trials for point in suite.points)
    say(f"{len(suite.points)} points, {total} trials in all; {missing} are not in the queue yet")


def _show(suite: Suite, outcomes: dict[Point, Outcome]) -> None:
    from autotune.commands import render

    points = [point_cells(row) for row in rows(suite, outcomes)]
    ways = [way_cells(summary) for summary in summarise(suite, outcomes)]
    show(render.table(POINT_COLUMNS, points, ("JOB", "SEED", "TRIALS", "MS", "OF REFERENCE")))
    show("", render.table(WAY_COLUMNS, ways, WAY_COLUMNS[4:]))


def summarise(suite: Suite, outcomes: Mapping[Point, Outcome]) -> list[Summary]:
    """Return the summary of each way, in the order of the suite."""
    latencies: dict[Way, list[float]] = {point.way: [] for point in suite.points}
    for point, outcome in outcomes.items():
        if outcome.latency_ms is not None:
            latencies[point.way].append(outcome.latency_ms)
    means = {way: statistics.fmean(times) if times else None for way, times in latencies.items()}
    summaries = []
    for way, times in latencies.items():
        mean = means[way]
        reference = means[suite.references[way]]
        spread = statistics.stdev(times) if len(times) > 1 else None
        summaries.append(Summary(way, len(times), mean, spread, mean / reference if mean and reference else None))
    return summaries


def rows(suite: Suite, outcomes: Mapping[Point, Outcome]) -> list[dict[str, Any]]:
    """Return a row of plain values for each point, its latency over the mean of its reference included."""
    means = {summary.way: summary.mean_ms for summary in summarise(suite, outcomes)}
    table = []
    for point in suite.points:
        outcome = outcomes[point]
        reference = means[suite.references[point.way]]
        ratio = outcome.latency_ms / reference if outcome.latency_ms and reference else None
        place = {**point.way._asdict(), "model": point.way.model.name, "budget": point.way.trials, "seed": point.seed}
        table.append({**place, **asdict(outcome), "name": point.name, "reference_ms": reference, "ratio": ratio})
    return table


def to_json(suite: Suite, outcomes: Mapping[Point, Outcome]) -> dict[str, Any]:
    """Return the documented form of `sweep --json`."""
    ways = [
        {**asdict(summary), "way": {**summary.way._asdict(), "model": summary.way.model.name}}
        for summary in summarise(suite, outcomes)
    ]
    return {"version": 1, "sweep": suite.name, "latency": suite.latency, "points": rows(suite, outcomes), "ways": ways}


def to_csv(suite: Suite, outcomes: Mapping[Point, Outcome]) -> str:
    """Return a line for each point, after a line with the names of the columns."""
    table = rows(suite, outcomes)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def way_cells(summary: Summary) -> tuple[str, ...]:
    """Return the cells of a row of the table of ways."""
    way = summary.way
    numbers = (_number(summary.mean_ms), _number(summary.spread_ms), _number(summary.ratio))
    return (way.model.name, way.target, way.strategy, way.sampler, str(way.trials), str(summary.points), *numbers)


def point_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row of the table of points."""
    place = (str(row["job"]), str(row["name"]), str(row["seed"]), str(row["state"]), str(row["trials"]))
    return (*place, _number(row["latency_ms"]), _number(row["ratio"]))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def to_html(suite: Suite, outcomes: Mapping[Point, Outcome]) -> str:
    """Return a page with both tables."""
    ways = _html_table(WAY_COLUMNS, [way_cells(summary) for summary in summarise(suite, outcomes)])
    points = _html_table(POINT_COLUMNS, [point_cells(row) for row in rows(suite, outcomes)])
    title = html.escape(f"Sweep {suite.name}")
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em 1em .2em 0;text-align:left}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        f"</head>\n<body><h1>{title}</h1>\n<p>Latency: {_MEANING[suite.latency]}</p>\n"
        f"{ways}\n<h2>Points</h2>\n{points}\n"
        "</body></html>\n"
    )


def _html_table(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in body]
    return f"<table><tr>{head}</tr>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def command(
    context: typer.Context,
    suite: Annotated[Path, typer.Argument(metavar="SUITE.toml", help="Lists models, and the ways to tune them.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the jobs and change nothing.")] = False,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print one line of CSV per job.")] = False,
    page: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the tables.")] = None,
) -> None:
    """Tune models with several strategies, budgets and seeds, and compare the results.

    A sweep that was killed continues when it is started again.
    """
    if as_json and as_csv:
        raise BadInput("give --json or --csv, not both")
    if dry_run and (as_json or as_csv or page):
        raise BadInput("--dry-run prints a table; leave out --json, --csv and --html")
    if page is not None:
        check_output(page)
    workspace = workspace_of(context)
    config = load_config(workspace.config)
    parsed = read(suite, config)
    if dry_run or not (as_json or as_csv):
        _expansion(workspace, parsed)
    if dry_run:
        return
    with steps(as_json or as_csv) as step:
        outcomes = run(workspace, config, parsed, step)
    if page is not None:
        publish_bytes(page, to_html(parsed, outcomes).encode())
    if as_json:
        tell(json.dumps(to_json(parsed, outcomes)))
    elif as_csv:
        typer.echo(to_csv(parsed, outcomes), nl=False)
    else:
        _show(parsed, outcomes)
    if any(outcome.state != "done" for outcome in outcomes.values()):
        raise typer.Exit(1)
