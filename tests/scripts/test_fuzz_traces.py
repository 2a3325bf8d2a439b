"""Schedules from somebody else: a seeded sample of the mutants that scripts/chaos/fuzz_traces.py makes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "chaos" / "fuzz_traces.py"


@pytest.mark.slow
def test_mutated_schedules_run_nothing() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--count", "300", "--seed", "8"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {name: int(count) for name, count in re.findall(r"([a-z][a-z ]*) (\d+)", done.stdout)}
    assert outcomes.keys() - {"ended its process"} == {"refused", "not applicable", "applied"}
    assert 270 < sum(outcomes.values()) <= 300


@pytest.mark.slow
def test_schedules_that_grow_by_their_grammar_are_read_or_refused_within_bounds() -> None:
    command = [sys.executable, SCRIPT, "--count", "1000", "--read", "--seed", "8"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("1000 mutants: ") and "read " in done.stdout
