"""Random rounds of kills, as `autotune selftest` plays them; the seed is in what a failure prints."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from autotune.commands.selftest.run import Round, RoundResult
from autotune.commands.selftest.selftest import draw_seed, selftest


@pytest.mark.slow
def test_killed_anywhere_nothing_is_lost(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    verdict = selftest(
        tmp_path, rounds=2, seed=draw_seed(None), progress=lambda done, total: told.append((done, total))
    )
    assert verdict.ok, f"{verdict}\n" + "\n".join(verdict.losses)
    assert verdict.kills > 20, str(verdict)
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert list(tmp_path.iterdir()) == [], "nothing is left of it"


def test_a_loss_is_told_and_what_it_happened_to_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Round) -> RoundResult:
        self.orders.mkdir(parents=True)
        (self.orders / "trace.jsonl").write_text("")
        return RoundResult(["a step"], ["trial a was lost"], {}, Counter())

    monkeypatch.setattr(Round, "run", run)
    verdict = selftest(tmp_path, rounds=1, seed=7, progress=lambda done, total: None)
    assert not verdict.ok
    assert "sequential/0000: trial a was lost" in verdict.losses
    assert "2 losses; seed 7; see" in str(verdict)
    assert verdict.kept is not None and (verdict.kept / "sequential" / "0000").is_dir()


def test_a_workspace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "autotune", "--workspace", str(tmp_path / "none"), "selftest"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1
