"""The Python interface sees the queue that the command line sees."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import autotune
from autotune.api import queue
from autotune.api.job import Progress
from autotune.commands.submit.publish import Submission
from autotune.errors import BadInput, BadState, TimedOut, UnknownJob
from autotune.options import declared
from autotune.reasons import Reason
from autotune.storage import formats
from autotune.storage.formats import JobState
from autotune.storage.paths import JobPaths, Workspace


def test_importing_autotune_loads_nothing_heavy() -> None:
    heavy = "('tvm', 'numpy', 'onnx', 'xgboost')"
    code = f"import sys, autotune; autotune.submit; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_every_public_name_is_there() -> None:
    assert all(hasattr(autotune, name) for name in autotune.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        autotune.nope  # noqa: B018


class TestJobs:
    def test_are_those_of_the_workspace(self, workspace: Workspace, make_job: Callable[..., JobPaths]) -> None:
        make_job(1, "one")
        make_job(2, "two")
        assert [(job.id, job.name) for job in autotune.jobs(workspace.root)] == [(1, "one"), (2, "two")]
        assert autotune.open_job("two", workspace.root) == autotune.open_job(2, workspace.root)

    def test_that_do_not_exist_are_named_and_need_a_workspace(self, workspace: Workspace, tmp_path: Path) -> None:
        with pytest.raises(UnknownJob, match="no job '7'"):
            autotune.open_job(7, workspace.root)
        with pytest.raises(BadInput, match="there is no workspace .*nowhere"):
            autotune.jobs(tmp_path / "nowhere")


class TestSubmit:
    def test_hands_on_all_that_it_is_given(self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[Submission] = []

        def submit(_workspace: Workspace, _config: object, request: Submission, _progress: object) -> SimpleNamespace:
            asked.append(request)
            return SimpleNamespace(id=1, name="net")

        monkeypatch.setattr(queue, "submit_job", submit)
        given: dict[str, Any] = {
            "target": "simulated",
            "trials": 8,
            "name": "net",
            "priority": 2,
            "seed": 3,
            "strategy": "random",
        }
        given |= {"sampler": "greedy", "fresh": True, "winograd": False, "precision": "fp16", "deadline": 4.0}
        given |= {"within_s": 5.0, "stop_at_ms": 6.0, "on_end": "mail me", "trials_per_round": 4}
        given |= {"plan": "plan.toml", "memory_mb": 64.0, "calibrate": "inputs.npz", "max_drop": 0.01}
        given |= {"accuracy": "python score.py", "context_tokens": 512, "activations": "int8"}
        given |= {"values": {"rate": 16000}, "inputs": {"x": [1, 3]}, "dims": {"n": 7}}
        autotune.submit("net.onnx", workspace=workspace.root, **given)
        (submission,) = asked
        assert submission.model == Path("net.onnx")
        assert {name: getattr(submission.options, name) for name, _ in declared()} == given


class TestJob:
    @pytest.fixture
    def job(self, workspace: Workspace, make_job: Callable[..., JobPaths]) -> autotune.Job:
        make_job(1, "net", trials=64, state=JobState("running", trials_done=8))
        return autotune.open_job(1, workspace.root)

    def test_says_how_far_it_is_and_can_be_held_released_and_cancelled(self, job: autotune.Job) -> None:
        now = job.progress()
        assert (now.trials, now.budget, now.ended, now.latency_ms) == (8, 64, False, None)
        assert "no daemon is running" in now.reason
        job.hold()
        assert job.progress().state == "held"
        job.release()
        assert job.progress().state == "waiting"
        job.cancel()
        assert job.progress().state == "cancelled"
        with pytest.raises(BadState):
            job.cancel()

    def test_is_watched_until_it_ends(self, job: autotune.Job) -> None:
        seen = []
        for progress in job.watch(poll_s=0.0):
            seen.append(progress.trials)
            formats.write(job.paths.state, JobState("done", Reason("budget-used"), 64, finished_at=1.0))
        assert seen == [8, 64]

    def test_is_waited_for_no_longer_than_asked_and_unknown_once_it_was_removed(self, job: autotune.Job) -> None:
        with pytest.raises(TimedOut):
            job.wait(timeout_s=0.0)
        job.paths.folder.rename(job.paths.folder.with_name("gone"))
        with pytest.raises(UnknownJob, match="was removed"):
            job.progress()


def test_a_model_is_a_path_or_a_proto(workspace: Workspace) -> None:
    with pytest.raises(BadInput, match="a model is the path of a file, .* not int"):
        autotune.submit(7, workspace=workspace.root)
    with pytest.raises(BadInput, match="cannot read"):
        autotune.submit("/nowhere/net.onnx", workspace=workspace.root)


def test_tune_shows_its_progress_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    file = io.StringIO()
    running = Progress("running", "", 12, 400, 4.618, 185.0)
    for stream in (screen, file):
        monkeypatch.setattr("sys.stderr", stream)
        queue._show(running)
        queue._show(replace(running, state="done", trials=400))
    lines = [line.strip() for line in screen.getvalue().split("\r") if line]
    assert lines == ["running: 12 of 400 trials, tasks 4.618 ms, 3m05s left", "done: 400 of 400 trials, tasks 4.618 ms"]
    assert screen.getvalue().endswith("\n") and file.getvalue() == ""
