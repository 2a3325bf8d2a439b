"""The journal is read from the first line to the last, each once, also while it grows."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable

import pytest

from autotune.commands import logs
from autotune.reasons import Reason
from autotune.storage import formats, journal
from autotune.storage.formats import Control, JobState
from autotune.storage.journal import Event, JobEnded, StageDone, StageFailed, UnknownEvent, UserRequest
from autotune.storage.paths import JobPaths, Workspace

Make = Callable[..., JobPaths]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.commands.logs._POLL_S", 0.01)


def note(job: JobPaths, event: str, **details: object) -> None:
    journal.log_of(job.journal).append([{"at": time.time(), "event": event, **details}])


def events(workspace: Workspace, job: JobPaths, follow: bool = False) -> list[str]:
    return [event.name for event in logs.events(job, follow)]


def later(*actions: Callable[[], object]) -> threading.Thread:
    """Do these things in a while, one after the other."""

    def run() -> None:
        for action in actions:
            time.sleep(0.05)
            action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


class TestToItsEnd:
    def test_it_is_oldest_first_without_the_lines_that_are_damaged(self, workspace: Workspace, make_job: Make) -> None:
        job = make_job()
        assert events(workspace, job) == []
        for event in "abc":
            note(job, event, task=1)
        (first, *_) = logs.events(job, False)
        assert events(workspace, job) == ["a", "b", "c"]
        assert first.fields == {"task": 1} and abs(first.at - time.time()) < 60
        job.journal.write_bytes(job.journal.read_bytes().replace(b'"b"', b'"x"'))
        assert events(workspace, job) == ["a", "c"]


class TestFollowing:
    def test_lines_come_as_they_are_written_until_the_job_has_ended(self, workspace: Workspace, make_job: Make) -> None:
        job = make_job()
        note(job, "a")
        followed = logs.events(job, True)
        assert next(followed).name == "a"
        note(job, "b")
        assert next(followed).name == "b"
        thread = later(lambda: note(job, "c"), lambda: formats.write(job.state, JobState("done")))
        assert [event.name for event in followed] == ["c"]
        thread.join()
        assert events(workspace, job, follow=True) == ["a", "b", "c"]

    def test_it_ends_with_a_job_that_is_removed(self, workspace: Workspace, make_job: Make) -> None:
        job = make_job()
        note(job, "a")
        thread = later(lambda: shutil.rmtree(job.folder))
        assert events(workspace, job, follow=True) == ["a"]
        thread.join()

    def test_a_job_to_be_retried_has_not_ended(self, workspace: Workspace, make_job: Make) -> None:
        job = make_job(control=Control("run", 1), state=JobState("failed"))
        thread = later(lambda: note(job, "again"), lambda: formats.write(job.state, JobState("done", retries_seen=1)))
        assert events(workspace, job, follow=True) == ["again"]
        thread.join()

    def test_a_journal_that_is_mended_meanwhile_repeats_nothing(self, workspace: Workspace, make_job: Make) -> None:
        job = make_job()
        for event in "abc":
            note(job, event)
        followed = logs.events(job, True)
        assert [event.name for event in itertools.islice(followed, 3)] == ["a", "b", "c"]
        with job.journal.open("ab") as file:
            file.write(b"00000000 {}\n00000000 {}\n")
        thread = later(lambda: note(job, "d"), lambda: formats.write(job.state, JobState("done")))
        assert [event.name for event in followed] == ["d"]
        thread.join()


@pytest.mark.parametrize(
    ("event", "described"),
    [
        (
            StageDone(kind="build", task=1, round=2, began=1.0, seconds=1.5, summary={"built": 4, "failed": 0}),
            "build   task 1 round 2  1.50 s  built 4, failed 0",
        ),
        (
            StageFailed(kind="train", began=1.0, seconds=0.1, outcome="crashed", detail="no memory"),
            "train   task 0 round 0  0.10 s  FAILED reason train: crashed: no memory",
        ),
        (UserRequest("hold"), "held"),
        (JobEnded("done", Reason("budget-used")), "done: reason budget used"),
        (UnknownEvent("painted", {"colour": "red"}), "painted: colour red"),
    ],
)
def test_a_line_says_when_and_what_happened(event: Event | UnknownEvent, described: str) -> None:
    assert logs.line(event) == f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(event.at))}  {described}"
