"""Plans from somebody else: a seeded sample of those that scripts/chaos/fuzz_plans.py makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "chaos" / "fuzz_plans.py"


@pytest.mark.slow
def test_changed_plans_compute_what_the_network_computes_or_are_refused_within_bounds() -> None:
    command = [sys.executable, SCRIPT, "--count", "6", "--read", "500", "--seed", "8"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "500 files: " in done.stdout and "'read': " in done.stdout
