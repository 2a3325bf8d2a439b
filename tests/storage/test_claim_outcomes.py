"""What became of doubtful schedules is known by what they are, and failures are forgotten after a day."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.storage.claim_outcomes import ClaimOutcome, ClaimOutcomes, digest_of
from autotune.storage.formats import Candidate

NOW = 1_000_000.0
DAY = 24 * 3600.0


@pytest.fixture
def outcomes(tmp_path: Path) -> ClaimOutcomes:
    return ClaimOutcomes(tmp_path / "kind" / "task.claims")


def test_there_are_none_without_a_file(outcomes: ClaimOutcomes) -> None:
    assert outcomes.known("rebuild", NOW) == {}
    outcomes.add([])
    assert outcomes.known("rebuild", NOW) == {}


def test_the_last_outcome_of_a_schedule_counts(outcomes: ClaimOutcomes) -> None:
    failed = ClaimOutcome("a", "rebuild", NOW, reason="killed by SIGSEGV")
    made = ClaimOutcome("a", "rebuild", NOW + 1, hash="0123")
    outcomes.add([failed])
    assert outcomes.known("rebuild", NOW) == {"a": failed}
    outcomes.add([made])
    assert outcomes.known("rebuild", NOW + 2) == {"a": made}
    assert outcomes.known("features", NOW + 2) == {}


def test_a_failure_is_forgotten_after_a_day_and_a_program_never(outcomes: ClaimOutcomes) -> None:
    outcomes.add([ClaimOutcome("a", "rebuild", NOW), ClaimOutcome("b", "rebuild", NOW, hash="0123")])
    assert outcomes.known("rebuild", NOW + DAY - 1).keys() == {"a", "b"}
    assert outcomes.known("rebuild", NOW + DAY).keys() == {"b"}
    assert outcomes.known("rebuild", NOW - 1).keys() == {"b"}, "the clock was set back"


def test_a_damaged_line_and_one_of_another_kind_are_skipped(outcomes: ClaimOutcomes, tmp_path: Path) -> None:
    outcomes.add([ClaimOutcome("a", "rebuild", NOW)])
    with (tmp_path / "kind" / "task.claims").open("a") as file:
        file.write('00000000 {"schedule": "b"}\ntorn')
    assert outcomes.known("rebuild", NOW).keys() == {"a"}


def test_a_file_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "kind").write_text("no folder")
    outcomes = ClaimOutcomes(tmp_path / "kind" / "task.claims")
    outcomes.add([ClaimOutcome("a", "rebuild", NOW)])
    assert outcomes.known("rebuild", NOW) == {}


def test_a_digest_is_of_what_is_rebuilt_and_not_of_the_hash_that_is_claimed() -> None:
    one = Candidate("a", [[["EnterPostproc", [], [], []]], []], [])
    assert digest_of(one) == digest_of(Candidate("b", one.trace, one.args))
    assert digest_of(one) != digest_of(Candidate("a", [[], []], one.args))
    assert digest_of(one) != digest_of(Candidate("a", one.trace, [["TENSOR", "float32", [1]]]))
