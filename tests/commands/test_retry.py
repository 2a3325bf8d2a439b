"""What is submitted again is what was submitted, whatever autotune.toml says."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.commands.submit.publish import Submission, publish
from autotune.commands.submit.words import options_of
from autotune.config import Config
from autotune.options import AUTO, TuningOptions
from autotune.processes.messages import ImportAnswer
from autotune.settings import JobSettings
from autotune.storage.formats import JobSpec, TaskSpec
from autotune.storage.paths import Workspace

CONFIG = Config(job=JobSettings(trials=400))


def submit(workspace: Workspace, options: TuningOptions) -> JobSpec:
    task = TaskSpec("conv", "0" * 16, 1, "1x8", 0.5, True)
    imported = ImportAnswer({"kind": "simulated"}, "simulated-x", (), (task,), (0,))
    return publish(workspace, CONFIG, Submission(Path("net"), options), imported)


def test_an_automatic_budget_stays_one_where_the_workspace_has_a_number(workspace: Workspace) -> None:
    first = submit(workspace, TuningOptions(target="simulated", trials=AUTO))
    again = submit(workspace, options_of(first))
    assert again.automatic and again.trials == first.trials != 400


@pytest.mark.parametrize(("trials", "budget"), [(7, 7), (None, 400)])
def test_a_number_of_trials_stays_the_same(workspace: Workspace, trials: int | None, budget: int) -> None:
    first = submit(workspace, TuningOptions(target="simulated", trials=trials))
    again = submit(workspace, options_of(first))
    assert (again.trials, again.automatic) == (first.trials, first.automatic) == (budget, False)
