"""Files of a job that an earlier version submitted with `--explore` are read, and it goes on by its plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.config import Config
from autotune.daemon.queued_job import QueuedJob
from autotune.network_plan.plan import NOTHING
from autotune.planning.view import StageId
from autotune.stages import compile
from autotune.stages.stage import Stage
from autotune.storage import formats, journal
from autotune.storage.atomic import publish_json
from autotune.storage.formats import StageFile, TaskSpec, Trial
from autotune.storage.job_files import read_plan, read_spec
from autotune.storage.journal import StageFileDamaged, UnknownEvent
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.seals import LIBRARY, file_digest, seal
from autotune.storage.tuning_log import TuningLog

OWN = TaskSpec("conv", "0" * 16, 2, "1x8", 0.5, True)
OF_ANOTHER_PLAN = replace(OWN, name="conv_winograd", hash="1" * 16, weight=0)


@pytest.fixture
def explored(make_job: Callable[..., JobPaths]) -> JobPaths:
    """A job whose search has chosen a plan with the other task once."""
    paths = make_job(tasks=(OWN, OF_ANOTHER_PLAN), automatic=True)
    spec = json.loads(paths.spec.read_text())
    paths.spec.write_text(json.dumps({**spec, "explore": True}))
    choice = {"step": 1, "plan": {}, "weights": [0, 2], "contenders": [0, 0], "before": [2, 0]}
    (paths.folder / "choice.json").write_text(json.dumps(choice))
    return paths


def add_trial(workspace: Workspace, paths: JobPaths, task: int, time_us: float) -> None:
    spec = read_spec(paths)
    log = TuningLog(workspace.tuning_log(spec.target_key, spec.tasks[task].hash).records)
    log.add([Trial(f"{task}", [], [], (time_us,), None, paths.folder.name, 0, 0.0)])


@pytest.mark.parametrize("explore", [False, True])
def test_a_spec_is_read(make_job: Callable[..., JobPaths], explore: bool) -> None:
    paths = make_job()
    written = read_spec(paths)
    paths.spec.write_text(json.dumps({**json.loads(paths.spec.read_text()), "explore": explore}))
    assert read_spec(paths) == written


def test_its_plan_is_that_of_the_submission(explored: JobPaths) -> None:
    assert read_plan(explored) == NOTHING
    assert [task.weight for task in read_spec(explored).tasks] == [2, 0]


def test_tasks_of_other_plans_get_no_trials(workspace: Workspace, explored: JobPaths) -> None:
    own, other = QueuedJob.open(workspace, explored, Config()).view().tasks
    assert (own.exhausted, other.exhausted) == (False, True)


def test_its_model_is_timed_without_tasks_of_other_plans(workspace: Workspace, explored: JobPaths) -> None:
    spec = read_spec(explored)
    assert not compile.is_due_at_once(workspace, explored, spec, Config())
    add_trial(workspace, explored, 0, 10.0)
    assert compile.is_due_at_once(workspace, explored, spec, Config())


def test_a_library_that_waits_to_be_timed_is_compiled_again(
    workspace: Workspace, explored: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was compiled by the chosen plan."""
    monkeypatch.setenv("XDG_STATE_HOME", str(workspace.root / "state"))
    stage = Stage(workspace, explored, read_spec(explored), Config(), StageFile(0, 0, "confirm"), (0,))
    stage.artifacts.mkdir(parents=True)
    library = stage.artifacts / "model.so"
    library.write_bytes(b"a library")
    model = {"seal": seal(LIBRARY, file_digest(library)), "tasks_ms": [1.0], "took_s": 1.0, "at": 1.0}
    publish_json(stage.artifacts / "model.json", "autotune-model", 3, model)
    assert compile.compiled(stage) is not None
    publish_json(stage.artifacts / "model.json", "autotune-model", 2, {"model": model, "contenders": {}})
    assert compile.compiled(stage) is None


def test_a_round_that_was_about_to_choose_begins_with_a_search(workspace: Workspace, explored: JobPaths) -> None:
    path = explored.stage(0, 0)
    path.write_text(path.read_text().replace('"search"', '"choose"'))
    job = QueuedJob.open(workspace, explored, Config())
    assert {id: file.kind for id, file in job.rounds.stages.items()} == {
        StageId(1, 0, 0): "search",
        StageId(1, 1, 0): "search",
    }
    assert isinstance(journal.read(explored.journal)[-1], StageFileDamaged)
    assert formats.read(StageFile, path).kind == "search"


def test_a_journal_that_tells_of_a_choice_is_read(explored: JobPaths) -> None:
    place = {"task": 0, "round": 0, "began": 1.0, "seconds": 2.0, "cpus": [0], "device": ""}
    line = {"event": "stage-done", "at": 3.0, "kind": "choose", **place, "summary": {"blocks": 1}}
    journal.log_of(explored.journal).append([line])
    (event,) = journal.read(explored.journal)
    assert isinstance(event, UnknownEvent)
