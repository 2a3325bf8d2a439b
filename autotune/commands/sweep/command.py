"""Sweep: a batch of jobs for all combinations of models and ways to tune them, which continues where it was killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.daemon.draining import DrainingDaemon
from autotune.commands.export import export
from autotune.commands.job_status import JobStatus, snapshot
from autotune.commands.jobs import job_name
from autotune.commands.submit.publish import Submission, submit
from autotune.commands.sweep import results
from autotune.commands.sweep.results import Outcome
from autotune.commands.sweep.suite import Point, Suite, read
from autotune.commands.terminal import Json, say, show, steps, tell, workspace_of
from autotune.config import Config, load_config
from autotune.errors import BadInput
from autotune.options import TuningOptions
from autotune.storage.atomic import check_output, publish_bytes
from autotune.storage.paths import JobPaths, Workspace

_POLL_S = 0.5

Progress = Callable[[str], None]


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
    known = {job_name(paths): paths for paths in workspace.job_list()}
    return {point: known.get(point.name) for point in suite.points}


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
    found = Outcome(job.id, job.state, job.trials_done, job.latency_ms)
    if suite.latency == "tasks" or job.state != "done":
        return found
    progress(f"exporting {job.name}")
    latency = _latency_of_model(workspace, config, suite, paths)
    return Outcome(job.id, job.state, job.trials_done, latency["tuned_ms"], latency.get("onnxruntime_ms"))


def _latency_of_model(workspace: Workspace, config: Config, suite: Suite, paths: JobPaths) -> dict[str, float]:
    """Return the latencies in the report of an export, which is made unless there is one."""
    folder = workspace.sweep_exports(suite.name) / job_name(paths)
    with suppress(OSError, ValueError, KeyError, TypeError):
        return dict(json.loads((folder / "report.json").read_bytes())["latency"])
    return dict(export(workspace, config, paths, folder, lambda step: None)["latency"])


def _expansion(workspace: Workspace, suite: Suite) -> None:
    from autotune.commands import render

    jobs = _jobs(workspace, suite)
    body = []
    for point in suite.points:
        way, paths = point.way, jobs[point]
        place = (way.model.name, way.target, way.strategy, way.sampler, str(way.trials), str(point.seed))
        body.append((*place, point.name, "-" if paths is None else str(paths.id)))
    columns = ("MODEL", "TARGET", "STRATEGY", "SAMPLER", "TRIALS", "SEED", "NAME", "JOB")
    show(render.table(columns, body, ("TRIALS", "SEED", "JOB")))
    missing = sum(paths is None for paths in jobs.values())
    total = sum(point.way.trials for point in suite.points)
    say(f"{len(suite.points)} points, {total} trials in all; {missing} are not in the queue yet")


def _show(suite: Suite, outcomes: dict[Point, Outcome]) -> None:
    from autotune.commands import render

    points = [results.point_cells(row) for row in results.rows(suite, outcomes)]
    ways = [results.way_cells(summary) for summary in results.summarise(suite, outcomes)]
    show(render.table(results.POINT_COLUMNS, points, ("JOB", "SEED", "TRIALS", "MS", "OF REFERENCE")))
    show("", render.table(results.WAY_COLUMNS, ways, results.WAY_COLUMNS[4:]))


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
    found = read(suite, config)
    if dry_run or not (as_json or as_csv):
        _expansion(workspace, found)
    if dry_run:
        return
    with steps(as_json or as_csv) as step:
        outcomes = run(workspace, config, found, step)
    if page is not None:
        publish_bytes(page, results.to_html(found, outcomes).encode())
    if as_json:
        tell(json.dumps(results.to_json(found, outcomes)))
    elif as_csv:
        typer.echo(results.to_csv(found, outcomes), nl=False)
    else:
        _show(found, outcomes)
    if any(outcome.state != "done" for outcome in outcomes.values()):
        raise typer.Exit(1)
