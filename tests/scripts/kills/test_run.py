"""What was found by killing: each stays fixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kills.plan import Kill
from kills.run import Round
from kills.subject import Subject, simulated


@pytest.fixture
def subject() -> Subject:
    """A job of two tasks and 16 trials, one round at a time."""
    whole = simulated(seed=1, policy="sequential", second=0.002)
    return replace(whole, submissions=lambda root: whole.submissions(root)[:1], limit_s=60.0)


def test_a_measurement_killed_after_it_logged_is_within_the_budget(tmp_path: Path, subject: Subject) -> None:
    """Four trials a round: the fourth round's last one is logged, and the stage is killed before it can say so."""
    publishes = "stage unlink before jobs/JOB/artifacts/ROUND/LIBRARY.so"
    outcome = Round(tmp_path / "round", subject, [Kill(publishes, 13, "one")]).run()
    assert (outcome.deaths, outcome.problems) == ([publishes], [])
    assert outcome.jobs["one"][2] == 16
