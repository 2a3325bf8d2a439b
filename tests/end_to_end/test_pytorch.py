"""A program that PyTorch exported, from `submit` to a verified library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import autotune

WORDS = Path(__file__).parents[1] / "data" / "words.pt2"


def test_a_program_of_pytorch_is_verified_and_timed_against_pytorch(torch: Any, user: Any, tmp_path: Path) -> None:
    model = shutil.copy(WORDS, tmp_path / "words")
    user.ok("submit", model, "--dim", "s23=2", "--dim", "s27=5", "--quiet")
    job = user.root / "jobs" / "0001-words"
    assert (job / "model.pt2").exists() and not (job / "model.onnx").exists()
    shown = user.ok("export", "words", "--output", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert 0 <= report["largest_relative_error"] < 1e-4 and report["reference"] == "torch"
    assert set(report["latency"]) == {"tuned_ms", "torch_ms"}
    assert [item["name"] for item in report["inputs"]] == ["ids", "mask"]
    assert "PyTorch" in shown
    (job / "model.pt2").write_bytes(b"PK")
    done = user.run("export", "words", "--output", tmp_path / "again")
    assert done.returncode == 1 and "model.pt2 is damaged" in done.stderr


def test_a_program_in_memory_is_submitted(torch: Any, user: Any) -> None:
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.zeros(2, 4),))
    job = autotune.submit(program, workspace=user.root, name="linear")
    assert job.name == "linear" and (job.paths.folder / "model.pt2").exists()
