"""What a machine with a GPU is to do in its nine minutes goes through on the stand-in, step by step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..cuda_stand_in.on_cpu import image

ROOT = Path(__file__).parents[2]
STEPS = ("versions", "doctor", "tests", "submitted_a", "tuned_a", "rates_a", "exported_a", "compared_a1")


@pytest.mark.slow
@pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")
def test_the_first_call_of_the_proof_goes_through_on_the_stand_in(tmp_path):
    command = [ROOT / "scripts/gpu/rehearse.sh", tmp_path / "nothing-packed", "a", "a"]
    environment = {**os.environ, "PYTHON": sys.executable, "FRESH": str(tmp_path), "NETWORKS": "mlp:fp16:8"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    results = tmp_path / "repository/build/gpu/results"
    finished = {path.stem for path in results.glob("*.txt")}
    assert set(STEPS) <= finished, done.stdout
    assert all(f"== {step}: done before" in done.stdout for step in STEPS)
    assert {path.stem for path in results.glob("*.part")} == {"ceilings"}, "torch has no GPU here"
    assert "| mlp-fp16 | fp16 | ours |" in (results / "tables.md").read_text()
    kept = list(tmp_path.glob("kept.tar.gz.*"))
    listed = subprocess.run(f"cat {tmp_path}/kept.tar.gz.* | tar -tz", shell=True, capture_output=True, text=True)
    assert len(kept) == 1 and "./tables.md" in listed.stdout and "journal.jsonl" in listed.stdout
