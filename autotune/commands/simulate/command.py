"""Simulate a scenario under scheduling policies and compare the results."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.commands.simulate.scenario_file import read
from autotune.commands.terminal import Json, show, tell
from autotune.errors import BadInput
from autotune.planning import policies
from autotune.planning.scenario import Scenario
from autotune.planning.simulator import SimulationResult, simulate


def run(scenario: Scenario, names: Sequence[str], record: bool = False) -> list[SimulationResult]:
    """Simulate a scenario.

    Args:
        scenario: The scenario.
        names: The policies; none means all of them.
        record: Whether the results hold every stage, for a chart.

    Returns:
        One result for each policy.

    Raises:
        BadInput: There is no such policy.
    """
    try:
        chosen = [policies.get(name) for name in names or policies.POLICIES]
    except ValueError as error:
        raise BadInput(str(error)) from error
    gc.disable()  # the simulator makes no reference cycles, and looking for them takes time
    try:
        return [simulate(scenario, policy, record) for policy in chosen]
    finally:
        gc.enable()


def to_json(result: SimulationResult) -> dict[str, Any]:
    """Return a result as JSON values: without the single stages, with means and utilisation in addition."""
    values = asdict(result)
    del values["spans"]
    return values | {
        "mean_completion": mean(result),
        "worst_completion": max(result.completions.values(), default=0.0),
        "utilisation": {name: result.utilisation(name) for name in result.counts},
    }


def mean(result: SimulationResult) -> float:
    """Return the mean completion time of the jobs that ended, in seconds."""
    return sum(result.completions.values()) / max(1, len(result.completions))


def command(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO.toml", help="Describes a machine, jobs, and how long stages take.")
    ],
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A policy; may be repeated; by default all.")
    ] = None,
    gantt: Annotated[Path | None, typer.Option(metavar="FILE.png|svg|html", help="Draw a chart of the stages.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate jobs on a machine that you describe, and compare scheduling policies."""
    from autotune.commands import render
    from autotune.commands.simulate import gantt as chart

    if gantt is not None:
        chart.check(gantt)
    found = run(read(scenario), policy or [], record=gantt is not None)
    if as_json:
        tell(json.dumps([to_json(result) for result in found]))
    else:
        show(render.outcomes(found))
    if gantt is not None:
        chart.save(gantt, found)
