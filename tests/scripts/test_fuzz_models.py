"""Submitting broken models: a seeded sample of the run in docs/explanation/reliability.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "chaos" / "fuzz_models.py"


@pytest.mark.slow
def test_mutants_become_whole_jobs_or_one_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--count", "60", "--seed", "7"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 mutants: accepted" in done.stdout
    assert " accepted 0," not in done.stdout and " refused 0," not in done.stdout
