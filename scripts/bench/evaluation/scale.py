"""Simulated at scale: the scenarios of this folder under all policies, and one of them with more and more GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.commands import gantt, simulate
from autotune.planning.scenario import Scenario

SCENARIOS = Path(__file__).parents[1] / "scenarios"
SWEPT = "four-gpus"
CHART = "evaluation-four-gpus.png"
_GPUS = (1, 2, 3, 4, 6, 8, 12)
_SWEPT_POLICIES = ("interleave", "predictive")


def run(work: Path, docs: Path) -> dict[str, Any]:
    """Outcomes by scenario and policy, and by number of GPUs; the chart goes to `docs` at once."""
    scenarios = {}
    for path in sorted(SCENARIOS.glob("*.toml")):
        print(f"{path.stem}: all policies", flush=True)
        scenario = simulate.read(path)
        outcomes = simulate.run(scenario, [])
        scenarios[path.stem] = {"title": _title(path), "outcomes": [simulate.to_json(outcome) for outcome in outcomes]}
    swept = simulate.read(SCENARIOS / f"{SWEPT}.toml")
    gantt.save(docs / "images" / CHART, simulate.run(swept, _SWEPT_POLICIES, record=True))
    return {"scenarios": scenarios, "sweep": [_at(swept, gpus) for gpus in _GPUS]}


def _at(scenario: Scenario, gpus: int) -> dict[str, Any]:
    devices = ("cpu", *(f"cuda:{index}" for index in range(gpus)))
    changed = replace(scenario, machine=replace(scenario.machine, devices=devices))
    outcomes = simulate.run(changed, _SWEPT_POLICIES)
    return {
        "gpus": gpus,
        "bound": min(outcome.bound for outcome in outcomes),
        "makespan": {outcome.policy: outcome.makespan for outcome in outcomes},
        "utilisation": {outcome.policy: outcome.utilisation("cuda") for outcome in outcomes},
    }


def _title(path: Path) -> str:
    return path.read_text().splitlines()[0].lstrip("# ")
