"""The README's picture of a night says how long the policies take that it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from autotune.cli import app

ROOT = Path(__file__).parents[2]
SCENARIO = ROOT / "scripts" / "bench" / "scenarios" / "night.toml"


def test_the_seconds_are_those_that_are_simulated() -> None:
    policies = ("--policy", "sequential", "--policy", "predictive")
    told = json.loads(CliRunner().invoke(app, ["simulate", str(SCENARIO), *policies, "--json"]).stdout)
    said = re.search(r"interleaved: ([\d,]+) and ([\d,]+) seconds\]", (ROOT / "README.md").read_text())
    assert said
    assert [f"{outcome['makespan']:,.0f}" for outcome in told] == list(said.groups())
