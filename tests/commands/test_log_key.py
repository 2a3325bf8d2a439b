"""Trials that an earlier version logged under another key of the same target are still found."""

from __future__ import annotations

import pytest

from autotune.commands.submit import log_key
from autotune.processes.messages import ImportAnswer
from autotune.storage.formats import TaskSpec
from autotune.storage.paths import Workspace


@pytest.fixture
def answer():
    tasks = tuple(TaskSpec(name, name, 1, "", 0.0, True) for name in ("conv", "dense"))
    return ImportAnswer({"kind": "cuda"}, "new", (), tasks, (), former_keys=("old",))


@pytest.mark.parametrize(
    ("logged", "key"),
    [
        ((), "new"),
        ((("old", "conv"),), "old"),
        ((("new", "conv"), ("old", "conv")), "new"),
        ((("new", "another"), ("old", "conv")), "old"),
        ((("new", "conv"), ("old", "conv"), ("old", "dense")), "old"),
    ],
)
def test_a_job_goes_on_where_more_of_its_tasks_have_trials(tmp_path, answer, logged, key):
    workspace = Workspace(tmp_path)
    for kind, task in logged:
        path = workspace.tuning_log(kind, task).records
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert log_key(workspace, answer) == key
