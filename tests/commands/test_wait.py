"""Waiting ends when all of the jobs have, or when the time is up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from autotune.cli import _run
from autotune.commands.wait import wait
from autotune.errors import TimedOut
from autotune.reasons import Reason
from autotune.storage import formats
from autotune.storage.formats import Control, JobState
from autotune.storage.paths import JobPaths, Workspace

Make = Callable[..., JobPaths]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.commands.wait._POLL_S", 0.01)


def test_jobs_that_have_ended_are_told_at_once(workspace: Workspace, make_job: Make) -> None:
    jobs = [
        make_job(1, state=JobState("done", Reason("budget-used"))),
        make_job(2, "b", state=JobState("failed", Reason("all-set-aside", detail="crashed"))),
        make_job(3, "c", control=Control("cancel")),
    ]
    ended = [(job.id, job.state, job.reason) for job in wait(workspace, jobs, None)]
    assert ended == [(1, "done", "budget used"), (2, "failed", "crashed"), (3, "cancelled", "cancelled")]
    assert wait(workspace, [], None) == []


@pytest.mark.parametrize("timeout_s", [0.0, 0.2])
def test_time_may_run_out(workspace: Workspace, make_job: Make, timeout_s: float) -> None:
    jobs = [make_job(1, state=JobState("done")), make_job(2, "b"), make_job(3, "c", control=Control("hold"))]
    begun = time.monotonic()
    with pytest.raises(TimedOut, match=rf"^2 of 3 jobs have not ended after {timeout_s:g} s$"):
        wait(workspace, jobs, timeout_s)
    assert timeout_s <= time.monotonic() - begun < timeout_s + 5


def test_wait_returns_when_the_last_of_the_jobs_has_ended(workspace: Workspace, make_job: Make) -> None:
    first = make_job(1)
    last = make_job(2, "b")
    seen: list[list[str]] = []

    def end_one_after_the_other() -> None:
        for job in (first, last):
            time.sleep(0.1)
            formats.write(job.state, JobState("done"))

    thread = threading.Thread(target=end_one_after_the_other)
    thread.start()
    wait(workspace, [first, last], 30, lambda jobs: seen.append([job.state for job in jobs]))
    thread.join()
    assert seen[0] == ["waiting", "waiting"] and ["done", "waiting"] in seen and seen[-1] == ["done", "done"]


def test_a_job_that_nobody_waits_for_does_not_matter(workspace: Workspace, make_job: Make) -> None:
    make_job(1)
    assert [job.id for job in wait(workspace, [make_job(2, "b", state=JobState("done"))], 0)] == [2]


def test_a_time_that_is_no_number_would_never_be_up(
    workspace: Workspace, make_job: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make_job()
    assert _run(["--workspace", str(workspace.root), "wait", "1", "--timeout", "nan"]) == 2
    assert "--timeout nan: give a number of seconds" in capsys.readouterr().err
