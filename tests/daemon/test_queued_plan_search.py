"""A queued job that searches for its plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.config import Config
from autotune.daemon.queued_job import QueuedJob
from autotune.planning.view import StageId
from autotune.plans.exploration import Choice
from autotune.plans.plan import NOTHING
from autotune.storage import formats
from autotune.storage.formats import (
    StageFile,
    TaskSpec,
)
from autotune.storage.paths import JobPaths, Workspace

Make = Callable[..., JobPaths]


class TestPlanThatIsSearchedFor:
    """Tasks have their weights in the plan that was chosen."""

    def chosen(self, paths: JobPaths, **values: Any) -> None:
        choice = {"step": 1, "plan": NOTHING, "weights": (1, 0, 2), "contenders": (0, 0, 0), "before": (1, 2, 0)}
        formats.write(paths.choice, Choice(**{**choice, **values}))

    @pytest.fixture
    def job(self, workspace: Workspace, make_job: Make, add: Callable[..., None]) -> QueuedJob:
        weights = enumerate((1, 2, 0))
        tasks = [TaskSpec(f"conv{index}", f"{index:016x}", weight, "1x8", 0.5, True) for index, weight in weights]
        paths = make_job(tasks=tuple(tasks), explore=True)
        return QueuedJob.open(workspace, paths, Config())

    def test_a_task_without_weight_gets_its_first_trials_and_more_once_it_is_chosen_or_a_contender(
        self, job: QueuedJob, add: Callable[..., None]
    ) -> None:
        assert [task.exhausted for task in job.view().tasks] == [False, False, False]
        add(1, 5.0)
        add(2, 4.0)
        job.trials.refresh_all()
        assert [task.exhausted for task in job.view().tasks] == [False, False, True]
        self.chosen(job.paths)
        job.refresh(0)
        assert [(task.weight, task.exhausted) for task in job.view().tasks] == [(1, False), (0, True), (2, False)]
        self.chosen(job.paths, contenders=(0, 2, 0))
        job.refresh(0)
        assert [(task.weight, task.exhausted) for task in job.view().tasks] == [(1, False), (2, False), (2, False)]

    def test_an_automatic_budget_does_not_end_before_the_last_choice(
        self, workspace: Workspace, make_job: Make, add: Callable[..., None]
    ) -> None:
        paths = make_job(tasks=1, explore=True, automatic=True, trials=10_000)
        add(0, *[5.0] * 600)
        job = QueuedJob.open(workspace, paths, Config())
        assert not job.view().settled
        self.chosen(paths, weights=(1,), contenders=(0,), before=(1,), last=True)
        job.refresh(0)
        assert job.view().settled

    def test_where_choosing_fails_the_job_goes_on_with_the_plan_that_it_has(self, job: QueuedJob) -> None:
        stage = StageFile(0, 0, "choose")
        formats.write(job.paths.stage(0, 0), stage)
        job.refresh(0)
        job.give_up_choosing(StageId(job.id, 0, 0))
        assert job.choice is not None and job.choice.last and job.choice.weights == (1, 2, 0)
        assert [file.kind for id, file in job.rounds.stages.items() if id.task == 0] == ["search"]
