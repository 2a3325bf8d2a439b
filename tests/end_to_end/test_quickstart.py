"""The commands of getting started, which begin as the README's quickstart, run on a small model with a small budget."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from .conftest import make_user

ROOT = Path(__file__).parents[2]
CPP = all(map(shutil.which, ("cmake", "c++")))
if not CPP:
    warnings.warn("NO CMAKE OR NO C++ COMPILER: the C++ program of getting started was not built", stacklevel=1)
SHELL = 'autotune() { "$PYTHON" -m autotune "$@"; }; python() { "$PYTHON" "$@"; }; set -e\n'


def commands(page: str) -> list[str]:
    """The command lines of a page: those of shell blocks, and those after a prompt in the others."""
    lines = []
    for language, block in re.findall(r"^```(sh|console)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S):
        lines += re.findall(r"^\$ (.*)$" if language == "console" else r"^(.*)$", block, re.M)
    return [line for line in lines if line]


def form(line: str) -> str:
    """A line of output with `#` for every number, and one space for many."""
    # On a busy machine there is time for one process of each.
    line = line.replace("(one process of each)", "(0 to 0 in 0 processes of each)")
    return " ".join(re.sub(r"-?\d+(\.\d*)?(e[-+]\d+)?", "#", line).replace("[ ", "[").split()).replace(" ]", "]")


def shown(page: str) -> set[str]:
    """The forms of the lines of output that a page shows, but for those that name a task or a budget of the model."""
    text = (ROOT / page).read_text()
    lines = [line for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines()]
    forms = {form(line) for line in lines if not line.startswith(("$ ", "..."))}
    return {line for line in forms if "NCHWc" not in line and " trials" not in line and "llvm done" not in line}


def test_the_quickstart_is_a_part_of_getting_started() -> None:
    quickstart = commands("README.md")
    rest = iter(commands("docs/getting-started.md"))
    assert len(quickstart) == 5
    assert [line for line in quickstart if line not in rest] == []
    assert shown("README.md") <= shown("docs/getting-started.md")


@pytest.mark.slow
def test_getting_started_runs(tmp_path: Path, models: Path) -> None:
    user = make_user(tmp_path / "workspace", whole_model=True)
    make_folder, make_model, *lines = commands("docs/getting-started.md")
    assert make_folder == "mkdir tuning && cd tuning" and make_model.endswith("make_models.py mobilenet_v2 --output .")
    shutil.copy(models / "mlp.onnx", user.root / "mobilenet_v2.onnx")
    small = [re.sub(r"--within \w+", "--trials 4", line) for line in lines if CPP or "build" not in line]
    assert small != lines
    done = subprocess.run(
        ["bash", "-c", SHELL + "\n".join(small)],
        cwd=user.root,
        env={**os.environ, "PYTHON": sys.executable, "AUTOTUNE_WORKSPACE": str(user.root)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\n +1 +\S+ +llvm +done ", done.stdout), done.stdout
    assert (done.stdout + done.stderr).count("verified: largest relative error") == 2
    assert re.search(r"^\(1, \d+\) float32 \[", done.stdout, re.M)  # what run.py prints
    printed = {form(line) for line in (done.stdout + done.stderr).splitlines()}
    assert {line for line in shown("docs/getting-started.md") if CPP or "median of" not in line} <= printed
    if CPP:
        assert re.search(
            r"^mobilenet_v2: .* ms, the median of 100 runs$", done.stdout, re.M
        )  # what the C++ program prints
