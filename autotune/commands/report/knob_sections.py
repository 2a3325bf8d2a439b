"""The sections of a report on knobs: which matter, and what the fastest trials share."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.commands.report import charts, knob_importance
from autotune.commands.report.facts import JobReport
from autotune.commands.report.section import Cell, Section

_TASKS_WITH_KNOBS = 6


def knobs(job: JobReport) -> Section:
    columns = ("task", "name", "knob", "importance in %", "best", "among the fastest tenth", "trials")
    ranked = [task for task in charts.by_share(job) if task.knobs][:_TASKS_WITH_KNOBS]
    rows = tuple(
        (task.index, task.name, knob.name, 100 * knob.importance, knob.best, ", ".join(knob.good), knob.trials)
        for task in ranked
        for knob in knob_importance.shown(task.knobs)
    )
    if not rows:
        return Section("knobs", "Knobs", "Too few trials of any task have a time to tell its knobs apart.", columns, ())
    top = ranked[0]
    knob = ranked[0].knobs[0]
    says = (
        f"In task {top.index}, which takes most of those with enough trials, “{knob.name}” explains"
        f" {knob.importance:.0%} of how the times vary; the best trial has {knob.best or 'no such knob'}. With few"
        " trials this is a hint, not a proof."
    )
    names = [f"{row[0]}: {row[2]}" for row in rows]
    values = [float(row[3] or 0.0) / 100 for row in rows]
    return Section("knobs", "Knobs that matter", says, columns, rows, lambda: [charts.knob_bars(names, values)])


def knob_values(job: JobReport) -> tuple[Section, ...]:
    """Return the trials of the task that takes most among those with knobs that matter."""
    task = next((task for task in charts.by_share(job) if task.knob_values), None)
    if task is None:
        return ()
    timed = task.knob_values
    names = [knob.name for knob in knob_importance.shown(task.knobs)]
    fast = timed[: knob_importance.fastest(len(timed))]
    common = [(name, *_most_common([trial.values[place] for trial in fast])) for place, name in enumerate(names)]
    shared = [
        f"{value} for “{name}” ({count} of {len(fast)})" for name, value, count in common if 2 * count > len(fast)
    ]
    says = (
        f"Each line is one of the {len(timed)} timed trials of task {task.index}, {task.name}."
        f" The fastest tenth, up to {fast[-1].us:.4g} µs, is highlighted."
        f" Most of it has {', '.join(shared) or 'no value in common'}."
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple((task.index, trial.us, *trial.values) for trial in timed)
    draw = lambda: [charts.parallel_coordinates(names, timed, len(fast))]  # noqa: E731
    columns = ("task", "time in µs", *names)
    return (Section("knob_values", "What the fastest trials share", says, columns, rows, draw, folded=True),)


def _most_common(values: Sequence[str]) -> tuple[str, int]:
    value = max(dict.fromkeys(values), key=values.count)
    return value or "nothing", values.count(value)
