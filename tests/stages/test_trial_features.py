"""Features beside the tuning logs: what is written comes back, damage is nothing, and jobs learn from other jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autotune.config import load_config
from autotune.processes.messages import RunStage
from autotune.stages import trial_features
from autotune.stages.stage import Stage
from autotune.stages.trial_features import TrialFeatures
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.search.features import WIDTH


def sample(*names: str, stores: int = 2) -> TrialFeatures:
    rows = [np.full((stores + index, WIDTH), index, np.float32) for index in range(len(names))]
    return TrialFeatures(names, rows, [100.0 / (index + 1) for index in range(len(names))])


def test_a_sample_comes_back_as_it_was(tmp_path: Path) -> None:
    written = sample("a", "b", "c")
    trial_features.write(tmp_path / "task.npz", written)
    read_back = trial_features.read(tmp_path / "task.npz")
    assert (list(read_back.hashes), list(read_back.times_us)) == (["a", "b", "c"], [100.0, 50.0, 100.0 / 3])
    assert all(np.array_equal(one, other) for one, other in zip(read_back.rows, written.rows, strict=True))


def test_a_file_without_times_is_an_empty_sample(tmp_path: Path) -> None:
    path = tmp_path / "task.npz"
    np.savez(path, hashes=np.frombuffer(b'["a"]', np.uint8), rows=np.zeros((2, WIDTH), np.float32), ends=[2])
    assert trial_features.read(path) == TrialFeatures()


@pytest.fixture
def stage(workspace: Workspace, make_job: Callable[..., JobPaths]) -> Stage:
    """A stage of a job with tasks 0 and 1, and logs of these and of three others, `x0` the newest of them."""
    request = RunStage(0, make_job(tasks=2).folder.name, 0, 0, "search", (0,), 0.0, count=8)
    stage = Stage.load(workspace, load_config(workspace.config), request)
    hashes = [task.hash for task in stage.spec.tasks]
    for age, name in enumerate([*hashes, "x0", "x1", "x2"]):
        log = workspace.tuning_log(stage.spec.target_key, name)
        log.records.parent.mkdir(parents=True, exist_ok=True)
        log.records.write_text("")
        trial_features.write(log.features, sample(*(f"{name}-{index}" for index in range(4))))
        os.utime(log.features, (1000 - age, 1000 - age))
    return stage


def owners(features: list[TrialFeatures]) -> list[str]:
    return [str(item.hashes[0]).partition("-")[0] for item in features]


def test_a_job_borrows_from_tasks_that_it_does_not_have_the_newest_first(stage: Stage) -> None:
    assert owners(trial_features.of_other_jobs(stage, 100)) == ["x0", "x1", "x2"]


def test_a_job_borrows_no_more_logs_than_it_needs(stage: Stage) -> None:
    assert owners(trial_features.of_other_jobs(stage, 5)) == ["x0", "x1"]
    assert owners(trial_features.of_other_jobs(stage, 0)) == []
