"""Files that strangers write: a seeded sample of the mutants that scripts/chaos/fuzz_files.py makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "chaos" / "fuzz_files.py"


@pytest.mark.parametrize("kind", ["space", "t1", "state"])
def test_mutated_files_are_read_or_refused_in_a_line(kind: str) -> None:
    command = [sys.executable, SCRIPT, kind, "--count", "150", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(outcome in done.stdout for outcome in ("150 mutants", "refused", "read"))
