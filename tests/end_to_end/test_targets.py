"""One model, submitted for several targets at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import _run

from .conftest import User

BOARDS = """
[devices.phone]
kind = "rpc"
tracker = "127.0.0.1:1"
key = "box"
target = '{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 1}'
"""
FAST = '{"kind": "simulated", "measure_s": 0.01}'


def jobs(user: User) -> list[Path]:
    return sorted(user.root.glob("jobs/[0-9]*"))


def test_each_target_is_a_job_with_logs_of_its_own(user: User, models: Path) -> None:
    user.settle(BOARDS)
    printed = user.ok("submit", models / "mlp.onnx", "--target", "llvm", "--target", "phone", "--trials", 4)
    assert printed.split() == ["1", "2"]
    specs = [json.loads((folder / "spec.json").read_text()) for folder in jobs(user)]
    assert [(spec["name"], spec["trials"]) for spec in specs] == [("mlp", 4), ("mlp-2", 4)]
    assert [spec["target"].get("mtriple") for spec in specs] == [None, "aarch64-linux-gnu"]
    assert len({spec["target_key"] for spec in specs}) == 2


def test_if_one_target_is_wrong_there_is_no_job_at_all(user: User, models: Path) -> None:
    done = user.run("submit", models / "mlp.onnx", "--target", FAST, "--target", "phone")
    assert done.returncode == 2 and "'phone'" in done.stderr
    assert jobs(user) == [] and not list(user.root.glob("jobs/.*/*"))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--target", "llvm", "--target", "llvm"), "llvm is given twice"),
        (("--target", "llvm", "--target", "cuda", "--name", "net"), "--name is for one job"),
    ],
)
def test_what_names_one_job_is_not_for_several(
    user: User, models: Path, words: tuple[str, ...], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["--workspace", str(user.root), "submit", str(models / "mlp.onnx"), *words]) == 2
    said = capsys.readouterr()
    assert said.out == "" and fault in said.err and len(said.err.splitlines()) == 1
    assert jobs(user) == []
