"""What stages took outlives the daemon; what is lost is learnt anew."""

from __future__ import annotations

import logging

import pytest

from autotune.daemon import collector
from autotune.daemon.collector import StageTimes
from autotune.planning.view import JobView, RunningView, StageId, TaskView
from autotune.storage.paths import Workspace

STAGE = RunningView(StageId(7, 0, 0), "build", (0,))


def job(task: int = 0) -> JobView:
    return JobView(7, "cpu", (TaskView(f"llvm/{task}", 1),), (), 64, 16, 5, 0.01)


def learnt(workspace: Workspace, tasks: int = 1) -> StageTimes:
    times = StageTimes.load(workspace)
    for task in range(tasks):
        times.learn(job(task), STAGE, {"built": 3, "failed": 1}, 2.0)
    return times


def expected(times: StageTimes, *subjects: str) -> float:
    return times.estimates.seconds("build", "cpu", subjects, 4)


def test_the_next_daemon_knows_it_of_tasks_but_not_of_jobs(workspace: Workspace) -> None:
    learnt(workspace).save()
    times = StageTimes.load(workspace)
    assert expected(times, "9", "llvm/0") == 2.0
    (estimate,) = times.estimates.known.values()
    assert list(estimate.subjects) == ["llvm/0"]


def test_only_so_many_tasks_are_kept_those_used_last(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_MAX_TASKS", 3)
    times = learnt(workspace, 5)
    times.learn(job(1), STAGE, {"built": 4}, 2.0)
    times.save()
    (estimate,) = StageTimes.load(workspace).estimates.known.values()
    assert list(estimate.subjects) == ["llvm/3", "llvm/4", "llvm/1"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"format": "autotune-estimates", "version": 1, "means": [["build"]]}',
        '{"format": "autotune-estimates", "version": 1, "means": [["build", "cpu", "", -1, 0, 1]]}',
        '{"format": "autotune-estimates", "version": 99}',
    ],
)
def test_a_file_that_cannot_be_used_is_begun_anew_and_said_so(
    workspace: Workspace, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    workspace.estimates.write_text(text)
    times = StageTimes.load(workspace)
    assert not times.estimates.known
    assert str(workspace.estimates) in caplog.text
    times.learn(job(), STAGE, {"built": 4}, 2.0)
    times.save()
    assert expected(StageTimes.load(workspace), "llvm/0") == 2.0


def test_without_a_file_or_a_place_for_it_forecasts_are_guesses_and_this_is_said(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    times = StageTimes.load(workspace)
    assert "guesses" in caplog.text
    workspace.logs.rmdir()
    workspace.logs.write_text("")  # no folder to write to
    times.learn(job(), STAGE, {"built": 4}, 2.0)
    times.save(last=True)
    assert "could not keep" in caplog.text


def test_stage_times_are_written_seldom_and_at_the_end(workspace: Workspace) -> None:
    times = learnt(workspace)
    times.save()
    before = workspace.estimates.read_bytes()
    times.learn(job(), STAGE, {"built": 4}, 20.0)
    times.save()
    assert workspace.estimates.read_bytes() == before
    times.save(last=True)
    assert workspace.estimates.read_bytes() != before
