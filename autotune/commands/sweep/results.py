"""The results of a sweep: each point against its reference, with mean and spread over the seeds."""

from __future__ import annotations

import csv
import html
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.commands.sweep.suite import Point, Suite, Way


@dataclass(frozen=True)
class Outcome:
    """How the job of a point ended.

    Attributes:
        job: Its number.
        state: Its state.
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


def summarise(suite: Suite, outcomes: Mapping[Point, Outcome]) -> list[Summary]:
    """Return the summary of each way, in the order of the suite."""
    found: dict[Way, list[float]] = {point.way: [] for point in suite.points}
    for point, outcome in outcomes.items():
        if outcome.latency_ms is not None:
            found[point.way].append(outcome.latency_ms)
    means = {way: statistics.fmean(times) if times else None for way, times in found.items()}
    summaries = []
    for way, times in found.items():
        mean, reference = means[way], means[suite.references[way]]
        spread = statistics.stdev(times) if len(times) > 1 else None
        summaries.append(Summary(way, len(times), mean, spread, mean / reference if mean and reference else None))
    return summaries


def rows(suite: Suite, outcomes: Mapping[Point, Outcome]) -> list[dict[str, Any]]:
    """Return a row of plain values for each point, its latency over the mean of its reference included."""
    means = {summary.way: summary.mean_ms for summary in summarise(suite, outcomes)}
    found = []
    for point in suite.points:
        outcome = outcomes[point]
        reference = means[suite.references[point.way]]
        ratio = outcome.latency_ms / reference if outcome.latency_ms and reference else None
        place = {**point.way._asdict(), "model": point.way.model.name, "budget": point.way.trials, "seed": point.seed}
        found.append({**place, **asdict(outcome), "name": point.name, "reference_ms": reference, "ratio": ratio})
    return found


def to_json(suite: Suite, outcomes: Mapping[Point, Outcome]) -> dict[str, Any]:
    """Return the documented form of `sweep --json`."""
    ways = [
        {**asdict(summary), "way": {**summary.way._asdict(), "model": summary.way.model.name}}
        for summary in summarise(suite, outcomes)
    ]
    return {"version": 1, "sweep": suite.name, "latency": suite.latency, "points": rows(suite, outcomes), "ways": ways}


def to_csv(suite: Suite, outcomes: Mapping[Point, Outcome]) -> str:
    """Return a line for each point, after a line with the names of the columns."""
    found = rows(suite, outcomes)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


WAY_COLUMNS = ("MODEL", "TARGET", "STRATEGY", "SAMPLER", "TRIALS", "SEEDS", "MEAN MS", "SPREAD MS", "OF REFERENCE")
POINT_COLUMNS = ("JOB", "NAME", "SEED", "STATE", "TRIALS", "MS", "OF REFERENCE")


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


_MEANING = {
    "tasks": "the sum of the best times of the tasks, in milliseconds.",
    "model": "the median time of the exported model, in milliseconds.",
}


def _html_table(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in body]
    return f"<table><tr>{head}</tr>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
