"""Candidates are measured on boards: what works is logged, and nobody is blamed for a board that fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import BoardProblem
from autotune.stages import measure
from autotune.storage import formats
from autotune.storage.atomic import publish_json, read_json
from autotune.storage.formats import Candidate, StageFile, Trial
from autotune.storage.paths import JobPaths, Workspace

from ..hostile import in_a_child
from ..rpc_lab import Lab
from ..waiting import until
from .hostile_job import HostileJob, build_libraries

SETTINGS = """
[measure]
timeout_s = 1.5
repeats = 1
min_repeat_ms = 1
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_libraries(tmp_path_factory.mktemp("libraries"), "good", "wrong", "hang", "segfault", "slow")


class Job(HostileJob):
    """It is measured on boards."""

    device = "rpc-phone:0"

    def __init__(self, workspace: Workspace, paths: JobPaths, libraries: Path, lab: Lab) -> None:
        super().__init__(workspace, paths, libraries)
        self.lab = lab
        self.settle()

    def settle(self, **board: object) -> None:
        base = self.workspace.config.read_text().partition("\n[measure]")[0]
        self.workspace.config.write_text(base + SETTINGS + self.lab.section(**{"request_timeout_s": 20, **board}))

    @property
    def answer(self) -> Path:
        return self.workspace.root / "answer.json"

    def run(self) -> dict[str, Any]:
        """Measure in a child. Returns the summary, or what the board's problem is as `problem`."""
        in_a_child(self.measure)
        return read_json(self.answer, "test-answer", 1)

    def measure(self) -> None:
        try:
            publish_json(self.answer, "test-answer", 1, measure.run(self.stage()))
        except BoardProblem as problem:
            publish_json(self.answer, "test-answer", 1, {"problem": str(problem)})

    def candidate(self) -> Candidate:
        return formats.read(StageFile, self.paths.stage(0, 0)).candidates[0]


@pytest.fixture
def job(workspace: Workspace, make_job: Callable[..., JobPaths], libraries: Path, lab: Lab) -> Job:
    return Job(workspace, make_job(tasks=1, board="phone"), libraries, lab)


def failure(trial: Trial) -> str:
    return trial.failure.kind if trial.failure else "ok"


def test_candidates_are_timed_and_checked(job: Job) -> None:
    job.lab.start_server()
    job.put("wrong", "good")
    answer = job.run()
    trials = job.trials()
    assert {name: failure(trial) for name, trial in trials.items()} == {"wrong": "wrong", "good": "ok"}
    assert trials["good"].times_us[0] > 0
    assert answer["measured"] == answer["failed"] == 1 and not answer.get("sessions_failed")
    assert job.lab.loaded() == ["wrong.so", "good.so"]


@pytest.mark.parametrize(
    ("bad", "kind"), [("segfault", "error"), pytest.param("hang", "timeout", marks=pytest.mark.slow)]
)
def test_a_candidate_is_to_blame_after_three_sessions(job: Job, bad: str, kind: str) -> None:
    job.lab.start_server(supervised=True)
    job.put(bad, "good")
    answer = job.run()
    trials = job.trials()
    assert {name: failure(trial) for name, trial in trials.items()} == {bad: kind, "good": "ok"}
    assert trials[bad].failure and "3 sessions on boards failed at it" in trials[bad].failure.reason
    assert len(answer["sessions_failed"]) == 3 and answer["measured"] == answer["failed"] == 1


def test_a_server_that_is_killed_in_the_middle_is_no_fault_of_the_candidate(job: Job) -> None:
    first = job.lab.start_server()
    job.put("slow")
    job.lab.await_boards(1)
    child = in_a_child(job.measure, wait=False)
    until(lambda: job.lab.counts().free == 0)
    time.sleep(0.3)  # it is being timed, or sent
    job.lab.kill(first)
    job.lab.start_server()
    os.waitpid(child, 0)
    answer = read_json(job.answer, "test-answer", 1)
    if "problem" in answer:  # it was killed before the session had begun
        answer = job.run()
    else:
        assert len(answer["sessions_failed"]) == 1
    assert failure(job.trials()["slow"]) == "ok"


def test_a_failure_of_the_last_board_is_remembered_and_costs_no_trial(job: Job) -> None:
    job.lab.start_server()
    job.settle(request_timeout_s=2)
    job.put("segfault")
    job.lab.await_boards(1)
    answer = job.run()  # TVM's own server does not survive it
    assert "no free board with the key" in answer["problem"]
    assert job.candidate().lost == 1 and not job.trials()


def test_after_a_failure_a_kernel_that_is_known_to_be_good_runs_first(job: Job) -> None:
    job.lab.start_server()
    job.put("good")
    formats.write(job.paths.stage(0, 0), StageFile(0, 0, "measure", (replace(job.candidate(), lost=1),)))
    job.run()
    assert failure(job.trials()["good"]) == "ok" and job.lab.loaded() == ["probe.so", "good.so"]


def test_a_stopped_board_begins_no_session_and_costs_no_trial(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.stages import on_board

    monkeypatch.setattr(on_board, "_OPENING_S", 1.0)
    server = job.lab.start_server()
    job.put("good")
    job.lab.await_boards(1)
    job.lab.stop(server)
    assert "begins no session" in job.run()["problem"]
    assert not job.trials() and job.candidate().lost == 0


def test_a_tracker_that_is_killed_costs_no_trial_and_may_come_back(job: Job) -> None:
    job.lab.start_server()
    job.put("good")
    job.lab.await_boards(1)
    job.lab.kill_tracker()
    assert "does not answer (connection refused)" in job.run()["problem"]
    assert not job.trials()
    job.lab.start_tracker()
    job.lab.await_boards(1)  # its servers find it
    job.run()
    assert failure(job.trials()["good"]) == "ok"
