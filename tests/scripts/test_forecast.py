"""The forecast for a GPU counts the kernels of a network, and no kernel beats its floor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/gpu/forecast.py"


@pytest.mark.slow
def test_a_layer_of_bert_has_fewer_kernels_where_attention_is_one():
    done = subprocess.run(
        [sys.executable, SCRIPT, "bert_layer"], capture_output=True, text=True, check=True, timeout=300
    )
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| bert_layer")]
    kernels = {precision: int(count) for _, precision, count, *_ in rows}
    assert kernels == {"fp32": 15, "tf32": 15, "fp16": 8, "bf16": 8}
    assert all(float(floor) < float(split) <= float(usual) for *_, floor, usual, split in rows)
