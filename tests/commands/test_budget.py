"""Which budget a submission gets: the number that was given, that of the workspace, or an automatic one."""

from __future__ import annotations

import pytest

from autotune.commands.budget import parse_trials, trials_of
from autotune.errors import BadInput
from autotune.storage.formats import TaskSpec

TASKS = (
    TaskSpec("conv", "0" * 16, 2, "1x8", 0.5, True),
    TaskSpec("reshape", "1" * 16, 1, "1x8", 0.0, False),
    TaskSpec("dense", "2" * 16, 1, "1x8", 0.1, True),
)


@pytest.mark.parametrize(("text", "trials"), [("", 0), ("0", 0), ("640", 640), ("auto", "auto")])
def test_a_number_or_auto(text: str, trials: object) -> None:
    assert parse_trials(text) == trials


@pytest.mark.parametrize("text", ["-1", "many", "1.5", "1e3", " 7", "٣", "1234567890"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="give a number of trials, or auto"):
        parse_trials(text)


def test_a_number_is_kept_to_and_goes_before_that_of_the_workspace() -> None:
    assert trials_of(7, 9, TASKS, (500, 0, 500), fresh=False) == (7, False)
    assert trials_of(0, 9, TASKS, (0, 0, 0), fresh=False) == (9, False)


def test_without_a_number_it_follows_from_the_tasks_that_can_be_tuned() -> None:
    trials, automatic = trials_of(0, 0, TASKS, (0, 0, 0), fresh=False)
    assert automatic and trials > trials_of("auto", 9, TASKS[:2], (0, 0), fresh=False)[0] > 0
    assert trials_of("auto", 9, TASKS, (0, 0, 0), fresh=False) == (trials, True)


def test_known_trials_count_unless_the_job_is_fresh() -> None:
    none = trials_of("auto", 0, TASKS, (0, 0, 0), fresh=True)
    assert trials_of("auto", 0, TASKS, (5000, 0, 0), fresh=False)[0] > 5000
    assert trials_of("auto", 0, TASKS, (5000, 0, 0), fresh=True) == none
