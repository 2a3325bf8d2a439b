"""Trials from somebody else: a seeded sample of the mutants that scripts/chaos/fuzz_trials.py makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "chaos" / "fuzz_trials.py"


def test_mutated_files_and_logs_are_taken_in_or_refused_in_a_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--count", "400", "--seed", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"{outcome} " in done.stdout for outcome in ("400 mutants:", "refused", "taken in"))
