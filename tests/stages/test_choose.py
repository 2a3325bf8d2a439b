"""The plan of a job is chosen by what its tasks have taken, first after a part of its trials, then again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.submit.publish import Submission, submit
from autotune.config import Config
from autotune.options import TuningOptions
from autotune.stages import choose
from autotune.stages.stage import Stage
from autotune.storage import exploration_files, formats
from autotune.storage.exploration_files import read_alternatives, read_choice
from autotune.storage.formats import StageFile
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.export.compilation import JobModel

from .conftest import TRIALS, choosing, of_each_task, winograd_is_fast


def weights(paths: JobPaths) -> dict[str, int]:
    return {task.name: task.weight for task in read_spec(paths).tasks if task.weight and task.tunable}


def test_the_choice_is_due_after_a_part_of_the_trials_when_all_tasks_were_tried(
    workspace: Workspace, exploring: JobPaths, know_all: Any
) -> None:
    know_all(lambda name: 10.0)
    assert not choose.is_due(choosing(workspace, exploring)), "a trial each"
    know_all(lambda name: 10.0, trials=of_each_task(exploring, 0.3))
    assert choose.is_due(choosing(workspace, exploring))


def test_after_half_of_the_trials_the_choice_waits_for_no_task(
    workspace: Workspace, exploring: JobPaths, know_all: Any
) -> None:
    know_all(lambda name: 10.0 if "relu" in name else None, trials=5)
    assert not choose.is_due(choosing(workspace, exploring))
    know_all(lambda name: 10.0 if "relu" in name else None, trials=TRIALS // 2)
    assert choose.is_due(choosing(workspace, exploring))


def test_the_chosen_plan_has_the_fastest_kernels_and_is_what_is_exported(
    workspace: Workspace, exploring: JobPaths, know_all: Any
) -> None:
    before = weights(exploring)
    know_all(winograd_is_fast, trials=of_each_task(exploring, 0.3))
    facts = choose.run(choosing(workspace, exploring))
    assert facts["chosen_us"] < facts["before_us"] and facts["blocks"] == 2
    assert [("winograd" in name, count) for name, count in weights(exploring).items() if "conv" in name] == [(True, 2)]
    spec = read_spec(exploring)
    assert JobModel.read(exploring, spec).prepared is not None
    choice = read_choice(exploring, spec)
    assert choice is not None
    named = {task.name: weight for task, weight in zip(spec.tasks, choice.before, strict=True) if weight}
    assert {name: weight for name, weight in named.items() if name in before} == before


def test_what_is_nearly_as_fast_goes_on_to_get_trials_until_the_last_choice(
    workspace: Workspace, exploring: JobPaths, know_all: Any
) -> None:
    know_all(
        lambda name: 10.5 if "winograd" in name and "on_1" not in name else 10.0, trials=of_each_task(exploring, 0.3)
    )
    choose.run(choosing(workspace, exploring))
    spec = read_spec(exploring)
    choice = read_choice(exploring, spec)
    assert choice is not None and not choice.last
    near = [task.name for task, weight in zip(spec.tasks, choice.contenders, strict=True) if weight]
    assert any("winograd" in name for name in near)
    assert not choose.is_due(choosing(workspace, exploring)), "it was made"
    know_all(lambda name: 10.0, trials=of_each_task(exploring, 1.0))
    assert choose.is_due(choosing(workspace, exploring))
    choose.run(choosing(workspace, exploring))
    last = read_choice(exploring, spec)
    assert last is not None and last.last and not any(last.contenders)
    assert not choose.is_due(choosing(workspace, exploring))


def test_a_choice_that_was_killed_is_made_again_the_same(
    workspace: Workspace, exploring: JobPaths, know_all: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_all(winograd_is_fast, trials=of_each_task(exploring, 0.3))
    first = choosing(workspace, exploring)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Stage, "advance", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        choose.run(first)
    made = exploring.choice.read_bytes()
    assert choose.run(Stage(workspace, exploring, read_spec(exploring), Config(), first.file, (0,))) == {
        "skipped": True
    }
    exploring.choice.unlink()
    choose.run(choosing(workspace, exploring))
    assert exploring.choice.read_bytes() == made


def test_a_job_whose_tasks_were_all_tried_before_begins_with_a_choice(
    workspace: Workspace, convolutions: Path, exploring: JobPaths, know_all: Any
) -> None:
    know_all(winograd_is_fast, trials=3)
    options = TuningOptions(explore=True, trials=TRIALS, name="again")
    spec = submit(workspace, Config(), Submission(convolutions, options), lambda step: None)
    again = workspace.job(spec.id, spec.name)
    first = formats.read(StageFile, again.stage(spec.tunable[0], 0))
    assert first.kind == "choose"
    facts = choose.run(Stage(workspace, again, spec, Config(), first, (0,)))
    assert facts["blocks"] == 2
    choice = read_choice(again, spec)
    assert choice is not None and not choice.last


def test_trials_of_earlier_jobs_do_not_bring_the_first_choice_forward(
    workspace: Workspace, exploring: JobPaths, know_all: Any
) -> None:
    spec = read_spec(exploring)
    new = spec.tasks[spec.tunable[-1]].name
    know_all(lambda name: 10.0 if name != new else None, trials=TRIALS)
    trials_at_submit = tuple(TRIALS if task.tunable and task.name != new else 0 for task in spec.tasks)
    later = replace(spec, known_at_submit=trials_at_submit, trials=sum(trials_at_submit) + TRIALS)
    assert not choose.is_due(replace(choosing(workspace, exploring), spec=later))


def test_two_rounds_do_not_choose_at_once(workspace: Workspace, exploring: JobPaths, know_all: Any) -> None:
    know_all(winograd_is_fast, trials=of_each_task(exploring, 0.3))
    other = read_spec(exploring).tunable[1]
    stage = choosing(workspace, exploring)
    formats.write(exploring.stage(other, 0), StageFile(other, 0, "choose"))
    assert not choose.is_due(stage)


def test_a_job_that_does_not_search_for_its_plan_chooses_none(
    workspace: Workspace, exploring: JobPaths, know_all: Any
) -> None:
    know_all(winograd_is_fast, trials=of_each_task(exploring, 0.3))
    stage = choosing(workspace, exploring)
    assert not choose.is_due(replace(stage, spec=replace(stage.spec, explore=False)))


def test_where_no_plan_can_be_chosen_that_of_the_submission_stays(workspace: Workspace, exploring: JobPaths) -> None:
    before = weights(exploring)
    exploration_files.give_up(exploring, read_spec(exploring))
    assert weights(exploring) == before
    choice = read_choice(exploring, read_spec(exploring))
    assert choice is not None and choice.last and choice.plan.blocks == ()


def test_the_alternatives_are_those_of_the_tasks(exploring: JobPaths) -> None:
    hashes = {task.hash for task in read_spec(exploring).tasks}
    alternatives = read_alternatives(exploring)
    assert {kernel.task for kernel in alternatives.kernels} - {""} <= hashes
    assert len(alternatives.base) < len(alternatives.kernels)
