"""What a user wants to happen when a job ends happens once, and can harm nothing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.submit.publish import Submission, publish
from autotune.config import Config
from autotune.daemon.end_commands import EndCommands
from autotune.daemon.queued_job import QueuedJob
from autotune.options import TuningOptions
from autotune.processes.messages import ImportAnswer
from autotune.reasons import Reason
from autotune.storage import formats, journal
from autotune.storage.formats import JobState, TaskProgress, TaskSpec
from autotune.storage.journal import JobEnded, OnEnd
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.record_log import RecordLog

Make = Callable[..., JobPaths]
DONE = JobState("done", Reason("budget-used"), 12, (TaskProgress(8, 1000.0), TaskProgress(4, 250.0)), 1.0)


@pytest.fixture
def ended(workspace: Workspace, make_job: Make) -> Callable[..., QueuedJob]:
    """A job that is at its end, as a daemon opens it, with a command."""

    def make(command: str, state: JobState = DONE) -> QueuedJob:
        paths = make_job(7, on_end=command, state=state)
        for path in (paths.folder, paths.spec):
            path.chmod(path.stat().st_mode & ~0o022)
        journal.append(paths.journal, JobEnded(state.state, state.reason))
        return QueuedJob.open(workspace, paths, Config())

    return make


def commands(workspace: Workspace, limit_s: float = 60.0) -> EndCommands:
    config = Config()
    return EndCommands(workspace, replace(config, daemon=replace(config.daemon, on_end_timeout_s=limit_s)))


def awaited(runner: EndCommands) -> list[int]:
    return [process.wait(30) for process in runner._running]


def on_end(job: QueuedJob) -> list[OnEnd]:
    return [event for event in journal.read(job.paths.journal) if isinstance(event, OnEnd)]


def test_an_end_command_is_told_what_became_of_the_job(workspace: Workspace, ended: Any) -> None:
    job = ended("env | grep ^AUTOTUNE_ | sort; pwd; echo oops >&2")
    runner = commands(workspace)
    runner.start(job)
    assert awaited(runner) == [0]
    root = workspace.root.absolute()
    assert job.paths.on_end_log.read_text().splitlines() == [
        "AUTOTUNE_JOB=7",
        "AUTOTUNE_LATENCY_MS=1.5",
        "AUTOTUNE_MESSAGE=budget used",
        "AUTOTUNE_MODEL=/models/net.onnx",
        "AUTOTUNE_NAME=net",
        "AUTOTUNE_REASON=budget-used",
        "AUTOTUNE_STATE=done",
        "AUTOTUNE_TRIALS=12",
        f"AUTOTUNE_WORKSPACE={root}",
        str(root),
        "oops",
    ]


def test_a_level_that_was_met_is_told_as_it_was_measured(workspace: Workspace, ended: Any) -> None:
    job = ended("echo $AUTOTUNE_LATENCY_MS", replace(DONE, reason=Reason("stop-at-met", latency_ms=1.75)))
    runner = commands(workspace)
    runner.start(job)
    assert awaited(runner) == [0] and job.paths.on_end_log.read_text() == "1.75\n"


def test_an_end_command_runs_once_for_each_end_of_the_job_whoever_serves_it(workspace: Workspace, ended: Any) -> None:
    job = ended("echo ran")
    first = commands(workspace)
    second = commands(workspace)
    first.start(job)
    assert awaited(first) == [0]
    first.start(job)
    awaited(first)
    second.start(QueuedJob.open(workspace, job.paths, Config()))
    awaited(second)
    assert job.paths.on_end_log.read_text() == "ran\n"
    journal.append(job.paths.journal, JobEnded("done", Reason("budget-used")))  # after a retry
    second.start(job)
    awaited(second)
    assert job.paths.on_end_log.read_text() == "ran\nran\n"


def test_an_end_command_whose_start_was_killed_is_not_started_later(
    workspace: Workspace, ended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ended("echo ran")
    runner = commands(workspace)

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(EndCommands, "_spawn", killed)
        runner.start(job)
    runner.start(job)
    assert not job.paths.on_end_log.exists() and len(on_end(job)) == 1


def test_an_end_command_that_fails_or_hangs_harms_nothing(workspace: Workspace, ended: Any) -> None:
    job = ended("sleep 1000 & echo $! > child; sleep 1000")
    runner = commands(workspace, limit_s=1.0)
    began = time.monotonic()
    runner.start(job)
    assert time.monotonic() - began < 1.0, "nobody waits for it"
    assert os.getsid(runner._running[0].pid) != os.getsid(0)
    assert awaited(runner)[0] != 0
    child = int((workspace.root / "child").read_text())
    assert not Path(f"/proc/{child}").exists() or "(zombie)" in Path(f"/proc/{child}/status").read_text()


@pytest.mark.parametrize(("which", "mode"), [("folder", 0o020), ("spec", 0o002)])
def test_what_others_may_have_written_is_not_run(
    workspace: Workspace, ended: Any, caplog: pytest.LogCaptureFixture, which: str, mode: int
) -> None:
    job = ended("echo ran")
    runner = commands(workspace)
    path: Path = getattr(job.paths, which)
    path.chmod(path.stat().st_mode | mode)
    with caplog.at_level(logging.ERROR, "autotune.daemon"):
        runner.start(job)
        runner.start(job)
    (line,) = [record.message for record in caplog.records]
    assert line == f"0007-net: its --on-end command is not run: others may write to {path}; run: chmod go-w {path}"
    assert not job.paths.on_end_log.exists()
    assert [event.refused for event in on_end(job)] == [f"others may write to {path}; run: chmod go-w {path}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("which", ["folder", "spec"])
def test_what_belongs_to_another_user_is_not_run(workspace: Workspace, ended: Any, which: str) -> None:
    job = ended("echo ran")
    runner = commands(workspace)
    os.chown(getattr(job.paths, which), 12345, -1)
    runner.start(job)
    assert "belongs to another user" in on_end(job)[0].refused and not job.paths.on_end_log.exists()


def test_the_command_of_a_copied_workspace_is_not_run(
    workspace: Workspace, ended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `cp -r` of the workspace of somebody else: all files are this user's, and the command is not."""
    job = ended("touch /tmp/ran")
    runner = commands(workspace)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    runner.start(job)
    (event,) = on_end(job)
    assert event.refused.endswith("was not written by this user's autotune; submit the model again with --on-end")
    assert not job.paths.on_end_log.exists()


def test_a_journal_that_cannot_be_read_keeps_an_end_command_from_running(
    workspace: Workspace, ended: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job = ended("echo ran")
    runner = commands(workspace)
    RecordLog(job.paths.folder / "newer.jsonl", journal.FORMAT[0], journal.FORMAT[1] + 1).append([{"event": "x"}])
    (job.paths.folder / "newer.jsonl").replace(job.paths.journal)
    runner.start(job)
    assert ["its --on-end command is not run" in record.message for record in caplog.records] == [True]
    assert not job.paths.on_end_log.exists()


def test_a_submission_under_any_umask_is_trusted(workspace: Workspace) -> None:
    task = TaskSpec("conv", "0" * 16, 1, "1x8", 0.5, True)
    preview = ImportAnswer({"kind": "simulated"}, "simulated-x", (), (task,), (0,))
    before = os.umask(0)
    try:
        options = TuningOptions(target="simulated", on_end="echo ran")
        publish(workspace, Config(), Submission(Path("net"), options), preview)
    finally:
        os.umask(before)
    (paths,) = workspace.job_list()
    formats.write(paths.state, DONE)
    runner = commands(workspace)
    runner.start(QueuedJob.open(workspace, paths, Config()))
    assert awaited(runner) == [0] and paths.on_end_log.read_text() == "ran\n"


def test_a_job_without_an_end_command_has_nothing_of_one_in_its_journal(workspace: Workspace, ended: Any) -> None:
    job = ended("")
    commands(workspace).start(job)
    assert on_end(job) == []
