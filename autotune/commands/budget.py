"""The budget of a submission: a number of trials, or what the tasks of the model seem to need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from autotune.errors import BadInput
from autotune.planning.budget import TaskWork, automatic_trials
from autotune.storage.formats import TaskSpec

# A number of trials, `auto`, or 0 for what `[job] trials` says.
Trials = int | Literal["auto"]


def parse_trials(text: str) -> Trials:
    """Return the budget that a user wrote; 0 for an empty text.

    Raises:
        BadInput: It is neither `auto` nor a number of trials.
    """
    if text == "auto":
        return "auto"
    if re.fullmatch("[0-9]{0,9}", text) is None:
        raise BadInput(f"--trials {text!r}: give a number of trials, or auto")
    return int(text or 0)


def trials_of(
    wanted: Trials, setting: int, tasks: Sequence[TaskSpec], known: Sequence[int], fresh: bool
) -> tuple[int, bool]:
    """Return the budget of a job in trials, and whether it is automatic.

    Args:
        wanted: What the user asked for.
        setting: `[job] trials`; 0 for an automatic budget.
        tasks: The tasks of the model.
        known: How many trials of each task the workspace has.
        fresh: Whether these do not count.
    """
    number = 0 if wanted == "auto" else wanted or setting
    if number:
        return number, False
    pairs = [pair for pair in zip(tasks, known, strict=True) if pair[0].tunable]
    return automatic_trials([TaskWork(task.gflop * task.weight, 0 if fresh else count) for task, count in pairs]), True
