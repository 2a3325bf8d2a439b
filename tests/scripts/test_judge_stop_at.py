"""scripts/judge_stop_at.py: it says how many libraries meet a level, and by how much the others miss it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("judge_stop_at")


def test_a_library_counts_by_the_median_of_its_processes(script: ModuleType) -> None:
    met, near, missed = (script.Result("done", 40, 9.0, 4.9, turns) for turns in ((4, 5, 9), (5, 5.1, 5.2), (6, 6, 4)))
    assert script.verdict([met, near, missed], 5.0).strip() == "1 of 3 libraries meet 5 ms, 1 miss it by at most 3%"


def test_a_row_shows_the_shares_of_the_level(script: ModuleType) -> None:
    shown = script.row(3, script.Result("done", 40, 9.4, None, (4.0, 5.0, 6.0)), 5.0)
    assert shown == "| 3 | done | 40 | 9 |  | 5.00 | 1.00 (0.80 to 1.20) |"


def test_a_command_that_fails_ends_it_with_its_line(script: ModuleType, tmp_path) -> None:
    with pytest.raises(SystemExit, match=r"judge_stop_at: submit failed: .*nothing.onnx"):
        script.autotune(tmp_path, "submit", "nothing.onnx")
