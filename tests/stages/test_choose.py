"""The plan of a job is chosen by what its tasks have taken, first after a part of its trials, then again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.commands.submit.publish import Submission, submit
from autotune.config import Config
from autotune.options import TuningOptions
from autotune.stages import choose
from autotune.stages.stage import Stage
from autotune.storage import exploration, formats
from autotune.storage.exploration import read_alternatives, read_choice
from autotune.storage.formats import StageFile, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.export.compilation import JobModel

TRIALS = 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions, each with ReLU."""
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    draw = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(draw.uniform(-0.1, 0.1, (16, 16, 3, 3)).astype(np.float32), name) for name in ("v", "w")
    ]
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 8, 8]) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def submitted(model: Path) -> JobPaths:
    """A job that searches for its plan, as it was submitted."""
    workspace = Workspace(model.parent)
    options = TuningOptions(explore=True, trials=TRIALS, name="net")
    spec = submit(workspace, Config(), Submission(model, options), lambda step: None)
    return workspace.job(spec.id, spec.name)


@pytest.fixture
def paths(workspace: Workspace, submitted: JobPaths) -> JobPaths:
    """A copy of that job."""
    shutil.copytree(submitted.folder, workspace.jobs / submitted.folder.name)
    return JobPaths(workspace.jobs / submitted.folder.name)


@pytest.fixture
def know(workspace: Workspace, paths: JobPaths) -> Callable[..., None]:
    """Adds so many trials of each task that a function gives a time for."""

    def know(time_us: Callable[[str], float | None], trials: int = 1) -> None:
        spec = read_spec(paths)
        for index in spec.tunable:
            time = time_us(spec.tasks[index].name)
            log = TuningLog(workspace.tuning_log(spec.target_key, spec.tasks[index].hash).records)
            logged = len(log.entries())
            for number in range(logged, logged + trials) if time is not None else ():
                log.add([Trial(f"{index}-{number}", [], [], (time,), None, "0009-other", 0, 0.0)])

    return know


def stage_of(workspace: Workspace, paths: JobPaths) -> Stage:
    task = read_spec(paths).tunable[0]
    for path in paths.stage_files_of(task):
        path.unlink()
    file = StageFile(task, 3, "choose")
    formats.write(paths.stage(task, 3), file)
    return Stage(workspace, paths, read_spec(paths), Config(), file, (0,))


def winograd_is_fast(name: str) -> float:
    return 5.0 if "winograd" in name and "on_1" not in name else 10.0


def weights(paths: JobPaths) -> dict[str, int]:
    return {task.name: task.weight for task in read_spec(paths).tasks if task.weight and task.tunable}


def test_the_choice_is_due_after_a_part_of_the_trials_when_all_tasks_were_tried(
    workspace: Workspace, paths: JobPaths, know: Any
) -> None:
    count = len(read_spec(paths).tunable)
    know(lambda name: 10.0)
    assert not choose.is_due(stage_of(workspace, paths)), "a trial each"
    know(lambda name: 10.0, trials=1 + 3 * TRIALS // 10 // count)
    assert choose.is_due(stage_of(workspace, paths))


def test_after_half_of_the_trials_the_choice_waits_for_no_task(
    workspace: Workspace, paths: JobPaths, know: Any
) -> None:
    know(lambda name: 10.0 if "relu" in name else None, trials=5)
    assert not choose.is_due(stage_of(workspace, paths))
    know(lambda name: 10.0 if "relu" in name else None, trials=TRIALS // 2)
    assert choose.is_due(stage_of(workspace, paths))


def test_the_chosen_plan_has_the_fastest_kernels_and_is_what_is_exported(
    workspace: Workspace, paths: JobPaths, know: Any
) -> None:
    before = weights(paths)
    know(winograd_is_fast, trials=8)
    facts = choose.run(stage_of(workspace, paths))
    assert facts["chosen_us"] < facts["before_us"] and facts["blocks"] == 2
    assert [("winograd" in name, count) for name, count in weights(paths).items() if "conv" in name] == [(True, 2)]
    spec = read_spec(paths)
    assert JobModel.read(paths, spec).prepared is not None
    choice = read_choice(paths, spec)
    assert choice is not None
    named = {task.name: weight for task, weight in zip(spec.tasks, choice.before, strict=True) if weight}
    assert {name: weight for name, weight in named.items() if name in before} == before


def test_what_is_nearly_as_fast_goes_on_to_get_trials_until_the_last_choice(
    workspace: Workspace, paths: JobPaths, know: Any
) -> None:
    count = len(read_spec(paths).tunable)
    know(lambda name: 10.5 if "winograd" in name and "on_1" not in name else 10.0, trials=1 + 3 * TRIALS // 10 // count)
    choose.run(stage_of(workspace, paths))
    spec = read_spec(paths)
    choice = read_choice(paths, spec)
    assert choice is not None and not choice.last
    near = [task.name for task, weight in zip(spec.tasks, choice.contenders, strict=True) if weight]
    assert any("winograd" in name for name in near)
    assert not choose.is_due(stage_of(workspace, paths)), "it was made"
    know(lambda name: 10.0, trials=TRIALS // count)
    assert choose.is_due(stage_of(workspace, paths))
    choose.run(stage_of(workspace, paths))
    last = read_choice(paths, spec)
    assert last is not None and last.last and not any(last.contenders)
    assert not choose.is_due(stage_of(workspace, paths))


def test_a_choice_that_was_killed_is_made_again_the_same(
    workspace: Workspace, paths: JobPaths, know: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(winograd_is_fast, trials=8)
    first = stage_of(workspace, paths)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Stage, "end_round", lambda stage: (_ for _ in ()).throw(KeyboardInterrupt()))
        choose.run(first)
    made = paths.choice.read_bytes()
    assert choose.run(Stage(workspace, paths, read_spec(paths), Config(), first.file, (0,))) == {"skipped": True}
    paths.choice.unlink()
    choose.run(stage_of(workspace, paths))
    assert paths.choice.read_bytes() == made


def test_a_job_whose_tasks_were_all_tried_before_begins_with_a_choice(
    workspace: Workspace, model: Path, paths: JobPaths, know: Any
) -> None:
    know(winograd_is_fast, trials=3)
    options = TuningOptions(explore=True, trials=TRIALS, name="again")
    spec = submit(workspace, Config(), Submission(model, options), lambda step: None)
    again = workspace.job(spec.id, spec.name)
    first = formats.read(StageFile, again.stage(spec.tunable[0], 0))
    assert first.kind == "choose"
    facts = choose.run(Stage(workspace, again, spec, Config(), first, (0,)))
    assert facts["blocks"] == 2
    choice = read_choice(again, spec)
    assert choice is not None and not choice.last


def test_trials_of_earlier_jobs_do_not_bring_the_first_choice_forward(
    workspace: Workspace, paths: JobPaths, know: Any
) -> None:
    spec = read_spec(paths)
    new = spec.tasks[spec.tunable[-1]].name
    know(lambda name: 10.0 if name != new else None, trials=TRIALS)
    trials_at_submit = tuple(TRIALS if task.tunable and task.name != new else 0 for task in spec.tasks)
    later = replace(spec, known_at_submit=trials_at_submit, trials=sum(trials_at_submit) + TRIALS)
    assert not choose.is_due(replace(stage_of(workspace, paths), spec=later))


def test_two_rounds_do_not_choose_at_once(workspace: Workspace, paths: JobPaths, know: Any) -> None:
    know(winograd_is_fast, trials=8)
    other = read_spec(paths).tunable[1]
    stage = stage_of(workspace, paths)
    formats.write(paths.stage(other, 0), StageFile(other, 0, "choose"))
    assert not choose.is_due(stage)


def test_a_job_that_does_not_search_for_its_plan_chooses_none(workspace: Workspace, paths: JobPaths, know: Any) -> None:
    know(winograd_is_fast, trials=8)
    stage = stage_of(workspace, paths)
    assert not choose.is_due(replace(stage, spec=replace(stage.spec, explore=False)))


def test_where_no_plan_can_be_chosen_that_of_the_submission_stays(workspace: Workspace, paths: JobPaths) -> None:
    before = weights(paths)
    exploration.give_up(paths, read_spec(paths))
    assert weights(paths) == before
    choice = read_choice(paths, read_spec(paths))
    assert choice is not None and choice.last and choice.plan.blocks == ()


def test_the_alternatives_are_those_of_the_tasks(paths: JobPaths) -> None:
    hashes = {task.hash for task in read_spec(paths).tasks}
    alternatives = read_alternatives(paths)
    assert {kernel.task for kernel in alternatives.kernels} - {""} <= hashes
    assert len(alternatives.base) < len(alternatives.kernels)
