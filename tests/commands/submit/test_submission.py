"""Numbers with which no planner could compute are refused before the model is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.cli import _run
from autotune.errors import BadInput
from autotune.options import TuningOptions, check_numbers


@pytest.mark.parametrize(
    ("option", "number"),
    [
        ("priority", 10**6 + 1),
        ("priority", -(10**400)),
        ("seed", -1),
        ("seed", 2**63),
        ("trials_per_round", 10**9),
        ("trials_per_round", 0),
        ("trials", 0),
        ("trials", 10**9),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_range(option: str, number: int) -> None:
    numbers: dict[str, Any] = {option: number}
    with pytest.raises(BadInput, match=f"--{option.replace('_', '-')}: give a number from"):
        check_numbers(TuningOptions(**numbers))


@pytest.mark.parametrize("numbers", [{}, {"trials": "auto"}, {"seed": 2**63 - 1, "priority": -(10**6), "trials": 7}])
def test_any_other_number_is_taken(numbers: dict[str, Any]) -> None:
    check_numbers(TuningOptions(**numbers))


def test_the_command_says_so_in_a_line_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "m.onnx").write_bytes(b"no model")
    words = ["--workspace", str(workspace), "submit", str(tmp_path / "m.onnx"), "--priority", "9" * 400]
    assert _run(words) == 2
    assert capsys.readouterr().err == "autotune: --priority: give a number from -1000000 to 1000000\n"
    assert not list(workspace.iterdir())
