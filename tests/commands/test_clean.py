"""Clean removes jobs that have ended, and leavings; never a job that has not, nor a tuning log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.commands.clean import clean
from autotune.errors import BadState, DiskProblem
from autotune.storage.formats import Control, JobState, State
from autotune.storage.job_files import in_use
from autotune.storage.locks import try_lock
from autotune.storage.paths import JobPaths, Workspace

Make = Callable[..., JobPaths]
DAY_S = 86400.0


def ended(state: State = "done", days_ago: float = 0) -> JobState:
    return JobState(state, finished_at=time.time() - days_ago * DAY_S)


def left(workspace: Workspace) -> list[int]:
    return [job.id for job in workspace.job_list()]


def age(folder: Path, seconds: float) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_text("x")
    os.utime(folder, (time.time() - seconds,) * 2)
    return folder


class TestWhatGoes:
    @pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
    def test_jobs_that_have_ended(self, workspace: Workspace, make_job: Make, state: State) -> None:
        job = make_job(state=ended(state))
        assert clean(workspace, 0) == [job]
        assert not job.folder.exists()

    @pytest.mark.parametrize("state", ["waiting", "running", "held"])
    def test_not_those_that_have_not(self, workspace: Workspace, make_job: Make, state: State) -> None:
        make_job(state=JobState(state))
        assert clean(workspace, 0) == []
        assert left(workspace) == [1]

    def test_not_those_about_to_be_retried(self, workspace: Workspace, make_job: Make) -> None:
        make_job(control=Control("run", 1), state=ended("failed"))
        assert clean(workspace, 0) == []

    def test_only_those_that_are_named(self, workspace: Workspace, make_job: Make) -> None:
        named, _, young = (make_job(id, state=ended(days_ago=days)) for id, days in ((1, 8), (2, 8), (3, 1)))
        assert clean(workspace, 7 * DAY_S, [named, young]) == [named]
        assert left(workspace) == [2, 3]

    def test_none_if_one_that_is_named_has_not_ended(self, workspace: Workspace, make_job: Make) -> None:
        named = [make_job(1, state=ended()), make_job(2)]
        with pytest.raises(BadState, match="job 2 .* has not ended; run `autotune cancel 2` first"):
            clean(workspace, 0, named)
        assert left(workspace) == [1, 2]

    def test_those_cancelled_while_no_daemon_ran(self, workspace: Workspace, make_job: Make) -> None:
        make_job(control=Control("cancel"))
        assert [job.id for job in clean(workspace, 0)] == [1]

    def test_none_that_is_being_exported(self, workspace: Workspace, make_job: Make) -> None:
        exported = make_job(1, "exported", state=ended())
        other = make_job(2, "other", state=ended())
        with in_use(workspace, exported):
            with in_use(workspace, exported):
                pass  # the first of two exports is done
            with pytest.raises(BadState, match="job 1 .* is being exported"):
                clean(workspace, 0, [other, exported])
            assert left(workspace) == [1, 2]
            assert clean(workspace, 0) == [other]
        assert clean(workspace, 0) == [exported]

    def test_those_whose_export_was_killed(self, workspace: Workspace, make_job: Make) -> None:
        job = make_job(1, state=ended())
        job.use("7-killed").touch()
        assert clean(workspace, 0) == [job]

    def test_only_those_that_ended_so_long_ago(self, workspace: Workspace, make_job: Make) -> None:
        for id, days in enumerate([6.9, 7.1, 30], start=1):
            make_job(id, f"n{id}", state=ended(days_ago=days))
        assert [job.id for job in clean(workspace, 7 * DAY_S)] == [2, 3]
        assert left(workspace) == [1]

    def test_tuning_logs_stay(self, workspace: Workspace, make_job: Make) -> None:
        log = workspace.tuning_log("llvm-test", "0").records
        log.parent.mkdir(parents=True)
        log.write_text("trials")
        make_job(state=ended())
        clean(workspace, 0)
        assert log.read_text() == "trials"


class TestLeavings:
    def test_old_ones_of_killed_submissions_go(self, workspace: Workspace) -> None:
        old = age(workspace.incoming("4194303-abc"), 4000)
        new = age(workspace.incoming("2-abc"), 3000)
        clean(workspace, 0)
        assert not old.exists() and new.exists()

    def test_not_that_of_a_submission_that_runs_whatever_the_clock_says(self, workspace: Workspace) -> None:
        mine = age(workspace.incoming(f"{os.getpid()}-abc"), 4000)
        clean(workspace, 0)
        assert mine.exists()

    def test_a_job_that_ended_in_the_future_ended_just_now(self, workspace: Workspace, make_job: Make) -> None:
        """The clock has been put back since."""
        make_job(state=replace(ended(), finished_at=time.time() + 1e6))
        assert clean(workspace, 60) == []
        assert len(clean(workspace, 0)) == 1

    def test_those_of_a_clean_that_was_killed_go(self, workspace: Workspace, make_job: Make) -> None:
        killed = age(workspace.incoming("removed-0001-net"), 0)
        make_job(state=ended())
        clean(workspace, 0)
        assert not killed.exists() and left(workspace) == []

    def test_nothing_else_does(self, workspace: Workspace) -> None:
        other = age(workspace.jobs / ".other", 1e6)
        clean(workspace, 0)
        assert other.exists()


def test_a_job_leaves_the_queue_before_its_files_go(
    workspace: Workspace, make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    monkeypatch.setattr("autotune.commands.clean.remove_tree", lambda *_, **__: seen.append(left(workspace)))
    make_job(state=ended())
    clean(workspace, 0)
    assert seen and seen[0] == []


def test_clean_holds_the_lock_of_the_queue(
    workspace: Workspace, make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    could_lock: list[bool] = []
    monkeypatch.setattr(
        "autotune.commands.clean.remove_tree",
        lambda *_, **__: could_lock.append(try_lock(workspace.queue_lock) is not None),
    )
    make_job(state=ended())
    clean(workspace, 0)
    assert could_lock and not any(could_lock)


def test_a_folder_that_cannot_be_removed_is_named(
    workspace: Workspace, make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    job = make_job(state=ended())
    monkeypatch.setattr("autotune.commands.clean.os.rename", refuse)
    with pytest.raises(DiskProblem, match=str(job.folder)):
        clean(workspace, 0)


def test_in_a_folder_without_a_queue_nothing_is_removed_nor_made(tmp_path: Path) -> None:
    assert clean(Workspace(tmp_path), 0) == []
    assert not list(tmp_path.iterdir())
