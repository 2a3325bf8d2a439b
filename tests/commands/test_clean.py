"""Clean removes jobs that have ended, and leavings; never a job that has not, nor a tuning log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.commands.clean import clean, clean_objects
from autotune.errors import BadState, DiskProblem
from autotune.storage.formats import Control, JobState, State
from autotune.storage.job_files import in_use
from autotune.storage.kept_objects import KeptObjects
from autotune.storage.locks import try_lock
from autotune.storage.paths import JobPaths, Workspace

Make = Callable[..., JobPaths]
DAY_S = 86400.0
OTHERS: tuple[State, ...] = ("waiting", "running", "held")
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")


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
    def test_jobs_that_have_ended(self, workspace: Workspace, make_job: Make) -> None:
        gone = [make_job(id, state, state=ended(state)) for id, state in enumerate(ENDED, start=1)]
        gone.append(make_job(4, "cancelled-without-a-daemon", control=Control("cancel")))
        gone[0].use("7-killed").touch()  # by an export that was killed
        for id, state in enumerate(OTHERS, start=5):
            make_job(id, state, state=JobState(state))
        make_job(8, "retried", control=Control("run", 1), state=ended("failed"))
        assert clean(workspace, 0) == gone
        assert left(workspace) == [5, 6, 7, 8] and not any(job.folder.exists() for job in gone)

    def test_only_those_that_ended_so_long_ago_and_are_named(self, workspace: Workspace, make_job: Make) -> None:
        log = workspace.tuning_log("llvm-test", "0").records
        log.parent.mkdir(parents=True)
        log.write_text("trials")
        days = enumerate((8, 8, 6.9, 7.1), start=1)
        named, _, young, _ = (make_job(id, f"n{id}", state=ended(days_ago=ago)) for id, ago in days)
        going = make_job(5, "going")
        with pytest.raises(BadState, match="job 5 .* has not ended; run `autotune cancel 5` first"):
            clean(workspace, 0, [named, going])
        assert left(workspace) == [1, 2, 3, 4, 5]
        assert clean(workspace, 7 * DAY_S, [named, young]) == [named]
        assert [job.id for job in clean(workspace, 7 * DAY_S)] == [2, 4]
        assert left(workspace) == [3, 5] and log.read_text() == "trials"

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


class TestLeavings:
    def test_old_ones_of_killed_submissions_go_and_nothing_else_does(self, workspace: Workspace) -> None:
        old = age(workspace.incoming("4194303-abc"), 4000)
        new = age(workspace.incoming("2-abc"), 3000)
        running = age(workspace.incoming(f"{os.getpid()}-abc"), 4000)
        other = age(workspace.jobs / ".other", 1e6)
        clean(workspace, 0)
        assert not old.exists() and new.exists() and running.exists() and other.exists()

    def test_a_job_that_ended_in_the_future_ended_just_now(self, workspace: Workspace, make_job: Make) -> None:
        """The clock has been put back since. What a clean left that was killed goes in any case."""
        killed = age(workspace.incoming("removed-0001-net"), 0)
        make_job(state=replace(ended(), finished_at=time.time() + 1e6))
        assert clean(workspace, 60) == []
        assert len(clean(workspace, 0)) == 1
        assert not killed.exists() and left(workspace) == []


def test_a_job_leaves_the_queue_which_is_locked_before_its_files_go(
    workspace: Workspace, make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[int], bool]] = []

    def look(*_: object, **__: object) -> None:
        seen.append((left(workspace), try_lock(workspace.queue_lock) is None))

    monkeypatch.setattr("autotune.commands.clean.remove_tree", look)
    make_job(state=ended())
    clean(workspace, 0)
    assert seen and seen == [([], True)] * len(seen)


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


def test_kept_kernels_go_when_asked_for_and_nothing_else(workspace: Workspace, make_job: Make) -> None:
    make_job(1, "done", state=ended())
    KeptObjects(workspace.objects, 10**6).add("ab", bytes(1000))
    assert clean(workspace, 1.0) == [] and list(workspace.objects.iterdir())
    assert clean_objects(workspace) > 1000 and not list(workspace.objects.iterdir())
    assert left(workspace) == [1]
    assert clean_objects(workspace) == 0
