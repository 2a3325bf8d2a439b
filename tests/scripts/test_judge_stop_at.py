"""scripts/judge_stop_at.py: it says how many libraries meet a level, and by how much the others miss it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("judge_stop_at")


def test_a_library_counts_by_the_median_of_its_turns(script: ModuleType) -> None:
    turns = (((4,), (5,), (9,)), ((5,), (5.1, 5.1, 9), (5.2,)), ((6,), (6,), (4,)), ())
    results = [script.Result("done", 40, 9.0, 4.9, script.Timed(each, 9)) for each in turns]
    assert script.verdict(results, 5.0).strip() == "1 of 4 libraries meet 5 ms, 1 miss it by at most 3%"


def test_only_timings_on_a_quiet_machine_count(script: ModuleType) -> None:
    """It is quiet where the reference takes at most a tenth longer than it ever did."""
    reference = script.Reference()
    assert reference.quiet([5.0, 9.0, 5.5], [4.0, 8.0, 4.4]) == [5.0, 5.5]
    assert reference.quiet([5.0], [4.5]) == []
    assert reference.quiet([4.0, 5.0], [3.0, 4.0]) == [4.0]


def test_a_row_shows_the_shares_of_the_level(script: ModuleType) -> None:
    library = script.Timed(((4.0,), (5.0, 5.0), (6.0,)), 12)
    shown = script.row(3, script.Result("done", 40, 9.4, None, library), 5.0)
    assert shown == "| 3 | done | 40 | 9 |  | 5.00 | 1.00 (0.80 to 1.20) | 4 of 12 |"


def test_a_machine_that_was_never_quiet_is_named(script: ModuleType) -> None:
    shown = script.row(3, script.Result("done", 40, 9.4, None, script.Timed((), 12)), 5.0)
    assert shown.endswith("| nan | the machine was not quiet | 0 of 12 |")


def test_a_command_that_fails_ends_it_with_its_line(script: ModuleType, tmp_path) -> None:
    with pytest.raises(SystemExit, match=r"judge_stop_at: submit failed: .*nothing.onnx"):
        script.autotune(tmp_path, "submit", "nothing.onnx")
