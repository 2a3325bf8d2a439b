"""Jobs that have ended are tuned again with what they were submitted with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.commands.retune import again, last_of_each
from autotune.commands.submit.publish import Submission, submit
from autotune.config import Config
from autotune.errors import BadInput
from autotune.options import TuningOptions
from autotune.storage import formats
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import model_checksum
from autotune.storage.paths import JobPaths, Workspace

SPACE = """
parameters.n = [1, 2]
[measure]
command = ["echo", "{n}"]
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "sleep.toml"
    path.write_text(SPACE)
    return path


def submitted(workspace: Workspace, space: Path, **options: object) -> JobSpec:
    return submit(workspace, Config(), Submission(space, TuningOptions(**options)), lambda step: None)


def paths_of(workspace: Workspace, spec: JobSpec) -> JobPaths:
    return next(paths for paths in workspace.job_list() if paths.id == spec.id)


def test_a_job_keeps_its_options_and_counts_new_trials_only(workspace, space):
    spec = submitted(workspace, space, trials=2, seed=7, priority=3)
    space.unlink()
    submission = again(paths_of(workspace, spec), Config())
    assert (submission.options.trials, submission.options.seed, submission.options.priority) == (2, 7, 3)
    assert submission.options.fresh and submission.origin == spec.model
    second = submit(workspace, Config(), submission, lambda step: None)
    assert second.tasks[0].hash == spec.tasks[0].hash and second.id == spec.id + 1


def test_the_budget_may_be_another(workspace, space):
    spec = submitted(workspace, space, trials=2)
    assert again(paths_of(workspace, spec), Config(), trials=1).options.trials == 1


@pytest.fixture
def of_a_model(make_job):
    """A job of another machine, with its copy of a model."""
    paths = make_job(target_key="llvm-x86-64-1-0123456789")
    paths.model.write_bytes(b"a model")
    size, crc = model_checksum(paths)
    formats.write(paths.spec, replace(formats.read(JobSpec, paths.spec), model_size=size, model_crc32=crc))
    return paths


def test_another_target_takes_the_place_of_the_own(of_a_model):
    assert again(of_a_model, Config(), target="cuda").options.target == "cuda"
    assert again(of_a_model, Config()).options.target == "llvm", "it goes on on this machine"


def test_a_job_keeps_the_plan_that_it_was_given(of_a_model):
    assert again(of_a_model, Config()).options.plan is None
    of_a_model.plan.touch()
    assert again(of_a_model, Config()).options.plan == str(of_a_model.plan)


def test_commands_have_no_other_target(workspace, space):
    paths = paths_of(workspace, submitted(workspace, space))
    with pytest.raises(BadInput, match="job 1 has no model, and no other target than its own"):
        again(paths, Config(), target="cuda")


def test_of_jobs_with_the_same_model_and_options_the_last_is_tuned(workspace, space):
    first = submitted(workspace, space, trials=1)
    other = submitted(workspace, space, trials=1, seed=1)
    last = submit(workspace, Config(), again(paths_of(workspace, first), Config(), trials=2), lambda step: None)
    assert [paths.id for paths in last_of_each(workspace.job_list())] == [other.id, last.id]
