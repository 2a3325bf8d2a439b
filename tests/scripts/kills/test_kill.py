"""scripts/chaos/kill.py: random rounds of kills lose nothing, and a loss is reported; a failure shows its seed."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import kill
import pytest
from kills.run import Round, RoundResult


@pytest.mark.slow
def test_rounds_of_kills_lose_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    seed = random.SystemRandom().randrange(10**6)
    verdict = kill.kill_rounds(tmp_path, 2, seed, lambda done, total: told.append((done, total)))
    assert verdict.ok, f"{verdict}\n" + "\n".join(verdict.losses)
    assert verdict.kills > 20, str(verdict)
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert list(tmp_path.iterdir()) == []


def test_a_loss_is_reported_and_its_round_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Round) -> RoundResult:
        self.orders.mkdir(parents=True)
        (self.orders / "trace.jsonl").write_text("")
        return RoundResult(["a step"], ["trial a was lost"], {}, Counter())

    monkeypatch.setattr(Round, "run", run)
    verdict = kill.kill_rounds(tmp_path, 1, 7, lambda done, total: None)
    assert not verdict.ok
    assert "sequential/0000: trial a was lost" in verdict.losses
    assert "2 losses; seed 7; see" in str(verdict)
    assert verdict.kept is not None and (verdict.kept / "sequential" / "0000").is_dir()


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, kill.__file__, "--folder", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "no such file or directory" in done.stderr.lower()
