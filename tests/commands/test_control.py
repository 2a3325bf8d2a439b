"""What the user wants of jobs is written down for the daemon, for all of them or for none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.commands import control, logs
from autotune.errors import BadState
from autotune.storage import formats, locks
from autotune.storage.formats import Control, JobState, TaskProgress
from autotune.storage.job_files import read_control
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.watch import FolderWatch

Make = Callable[..., JobPaths]
ASIDE = (TaskProgress(3, None, "build: crashed"),)


def refusal(workspace: Workspace, verb: str, *jobs: JobPaths) -> str:
    with pytest.raises(BadState) as caught:
        control.apply(workspace, verb, list(jobs))
    return str(caught.value)


class TestVerbs:
    @pytest.mark.parametrize(
        ("verb", "before", "after", "past"),
        [
            ("hold", None, Control("hold"), "held"),
            ("hold", Control("run", 3), Control("hold", 3), "held"),
            ("cancel", Control(), Control("cancel"), "cancelled"),
            ("cancel", Control("hold"), Control("cancel"), "cancelled"),
            ("hold", Control(), Control("hold"), "held"),
            ("hold", Control("hold"), Control("hold"), "held"),
            ("release", Control("hold"), Control("run"), "released"),
            ("retry", Control("cancel"), Control("run", 1), "to be retried"),
        ],
    )
    def test_it_changes_what_is_wanted(
        self, workspace: Workspace, make_job: Make, verb: str, before: Control | None, after: Control, past: str
    ) -> None:
        job = make_job(4, control=before)
        if before is None:
            job.control.unlink()
        assert control.apply(workspace, verb, [job]) == [f"job 4 {past}"]
        assert read_control(job) == after
        assert [event.verb for event in logs.events(job, False)] == [verb]

    @pytest.mark.parametrize(
        "state",
        [
            JobState("failed", retries_seen=2),
            JobState("cancelled", retries_seen=2),
            JobState("done", tasks=ASIDE, retries_seen=2),
        ],
    )
    def test_a_job_that_failed_was_cancelled_or_has_a_task_set_aside_can_be_retried(
        self, workspace: Workspace, make_job: Make, state: JobState
    ) -> None:
        wanted = Control("run" if state.state == "done" else "cancel", 2)
        job = make_job(tasks=1, control=wanted, state=state)
        control.apply(workspace, "retry", [job])
        assert read_control(job) == Control("run", 3)

    def test_after_a_retry_it_can_be_held_and_cancelled_again(self, workspace: Workspace, make_job: Make) -> None:
        job = make_job(state=JobState("failed"))
        for verb in ("retry", "hold", "release", "cancel", "retry"):
            control.apply(workspace, verb, [job])
        assert read_control(job) == Control("run", 2)


class TestRefusals:
    @pytest.mark.parametrize(
        ("verb", "given", "text"),
        [
            ("cancel", {"state": JobState("done")}, "it is done already"),
            ("cancel", {"state": JobState("failed")}, "it is failed already"),
            ("cancel", {"control": Control("cancel")}, "it is cancelled already"),
            ("hold", {"state": JobState("done")}, "it is done already"),
            ("hold", {"control": Control("cancel")}, "it is cancelled already"),
            ("release", {}, "it is not held"),
            ("release", {"control": Control("cancel")}, "it is not held"),
            ("retry", {}, "it is waiting; only a failed or cancelled job can be retried"),
            ("retry", {"state": JobState("running")}, "it is running; only a failed or cancelled job can be retried"),
            ("retry", {"state": JobState("done")}, "it is done; only a failed or cancelled job can be retried"),
            ("retry", {"control": Control("hold")}, "it is held; only a failed or cancelled job can be retried"),
        ],
    )
    def test_a_verb_that_does_not_fit_the_state(
        self, workspace: Workspace, make_job: Make, verb: str, given: dict[str, Any], text: str
    ) -> None:
        job = make_job(7, **given)
        before = read_control(job)
        assert refusal(workspace, verb, job) == f"cannot {verb} job 7: {text}"
        assert read_control(job) == before
        assert list(logs.events(job, False)) == []

    def test_one_refusal_leaves_all_as_they_were(self, workspace: Workspace, make_job: Make) -> None:
        good = make_job(1)
        done = make_job(2, "b", state=JobState("done"))
        gone = make_job(3, "c")
        shutil.rmtree(gone.folder)
        assert "job 2" in refusal(workspace, "cancel", good, done)
        assert refusal(workspace, "hold", good, gone) == "cannot hold job 3: it was removed meanwhile"
        assert read_control(good) == Control()


def test_jobs_change_under_the_lock_of_the_queue(
    workspace: Workspace, make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    could_lock: list[bool] = []
    monkeypatch.setattr(
        formats, "write", lambda *_: could_lock.append(locks.try_lock(workspace.queue_lock) is not None)
    )
    control.apply(workspace, "hold", [job])
    assert could_lock == [False]


def test_who_watches_the_queue_is_told(workspace: Workspace, make_job: Make) -> None:
    job = make_job()
    os.utime(workspace.jobs, (1e9, 1e9))
    watch = FolderWatch(workspace.jobs)
    assert watch.changed() and not watch.changed()
    control.apply(workspace, "hold", [job])
    assert watch.changed()


def test_all_jobs_of_a_folder_without_a_queue_are_none(tmp_path: Path) -> None:
    assert control.apply(Workspace(tmp_path), "cancel", []) == []
    assert not list(tmp_path.iterdir())
