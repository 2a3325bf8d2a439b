"""Which budget a submission gets: the number that was given, that of the workspace, or an automatic one."""

from __future__ import annotations

import pytest

from autotune.commands.submit.publish import trials_of
from autotune.commands.submit.words import number_or_auto
from autotune.errors import BadInput
from autotune.options import AUTO, TuningOptions
from autotune.storage.formats import TaskSpec

TASKS = (
    TaskSpec("conv", "0" * 16, 2, "1x8", 0.5, True),
    TaskSpec("reshape", "1" * 16, 1, "1x8", 0.0, False),
    TaskSpec("dense", "2" * 16, 1, "1x8", 0.1, True),
)


@pytest.mark.parametrize(("text", "trials"), [("0", 0), ("640", 640), ("auto", "auto")])
def test_a_number_or_auto(text: str, trials: object) -> None:
    assert number_or_auto(text, "--trials", "a number of trials") == trials


@pytest.mark.parametrize("text", ["", "-1", "1.5", " 7", "٣", "1234567890"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="give a number of trials, or auto"):
        number_or_auto(text, "--trials", "a number of trials")


def test_a_number_is_kept_to_and_without_one_it_follows_from_the_tasks_that_can_be_tuned() -> None:
    assert trials_of(TuningOptions(trials=7), 9, TASKS, (500, 0, 500)) == (7, False)
    assert trials_of(TuningOptions(), 9, TASKS, (0, 0, 0)) == (9, False)
    trials, automatic = trials_of(TuningOptions(), AUTO, TASKS, (0, 0, 0))
    assert automatic and trials > trials_of(TuningOptions(), AUTO, TASKS[:2], (0, 0))[0] > 0
    assert trials_of(TuningOptions(trials=AUTO), 9, TASKS, (0, 0, 0)) == (trials, True)


def test_known_trials_count_unless_the_job_is_fresh() -> None:
    fresh = TuningOptions(fresh=True)
    assert trials_of(TuningOptions(), AUTO, TASKS, (5000, 0, 0))[0] > 5000
    assert trials_of(fresh, AUTO, TASKS, (5000, 0, 0)) == trials_of(fresh, AUTO, TASKS, (0, 0, 0))
