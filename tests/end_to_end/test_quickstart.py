"""The commands of the README's quickstart run as they stand, on a small model with a small budget."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import User

ROOT = Path(__file__).parents[2]
SHELL = 'autotune() { "$PYTHON" -m autotune "$@"; }; python() { "$PYTHON" "$@"; }; set -e\n'


def commands(page: Path) -> list[str]:
    """The lines after a prompt in the first block that submits a model."""
    block = next(found for found in re.findall(r"```console\n(.*?)```", page.read_text(), re.S) if "submit" in found)
    return re.findall(r"^\$ (.*)$", block, re.M)


@pytest.mark.parametrize("page", ["README.md"])
def test_the_quickstart_runs(user: User, models: Path, page: str) -> None:
    lines = commands(ROOT / page)
    assert len(lines) == 5
    model = re.search(r"submit (\S+\.onnx)", lines[0])
    assert model is not None
    shutil.copy(models / "mlp.onnx", user.root / model[1])
    small = [re.sub(r"--within \w+|--trials \d+", "--trials 4", line) for line in lines]
    assert small != lines
    done = subprocess.run(
        ["bash", "-c", SHELL + "\n".join(small)],
        cwd=user.root,
        env={**os.environ, "PYTHON": sys.executable, "AUTOTUNE_WORKSPACE": str(user.root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\n +1 +\S+ +llvm +done ", done.stdout), done.stdout
    assert "verified: largest relative error" in done.stdout + done.stderr
    assert re.search(r"^\(1, \d+\) float32 \[", done.stdout, re.M)  # what run.py prints
