"""bench/compare_searches.py: how far the best of the first trials is from the best of all, on each side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from autotune.storage.formats import Failure, Trial
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("compare_searches")


def tuned(folder: Path, times: Sequence[float]) -> Path:
    """A workspace with the trials of one task; a time of 0 is a failed trial."""
    log = TuningLog(Workspace(folder).tuning_log("llvm", "a" * 16).records)
    broken = Failure("measure", "error", "broken")
    for number, time in enumerate(times):
        outcome = ((time,), None) if time else ((), broken)
        log.add([Trial(f"{number:016}", [[], []], [], *outcome, "1-net", 0, float(number))])
    return folder


def test_a_search_that_finds_the_best_first_is_at_its_end_at_once(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = tuned(tmp_path / "late", [40.0, 0.0, *[30.0] * 22, 10.0])
    soon = tuned(tmp_path / "soon", [20.0] * 24)
    monkeypatch.setattr(sys, "argv", ["compare_searches.py", str(late), str(soon)])
    script.main()
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "1 tasks with 24 trials"
    assert "| 1 | 4.00 | 1.00 | 0.50 |" in rows
    assert "| 24 | 1.00 | 1.00 | 2.00 |" in rows


def test_workspaces_that_have_no_such_task_in_common_are_refused(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = tuned(tmp_path / "few", [1.0] * 7), tuned(tmp_path / "many", [1.0] * 24)
    monkeypatch.setattr(sys, "argv", ["compare_searches.py", str(few), str(many), "--trials", "8"])
    with pytest.raises(SystemExit, match="no task has 8 trials in both"):
        script.main()
