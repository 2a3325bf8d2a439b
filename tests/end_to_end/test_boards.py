"""A job for boards, of which one dies and one hangs in the middle; and its export, which runs on a board."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.storage.journal import StageDone, StageFailed, WaitStarted
from autotune.storage.journal import read as read_journal
from autotune.storage.paths import Workspace
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT

from ..rpc_lab import Lab
from ..waiting import until
from .conftest import User

SETTINGS = """
[measure]
timeout_s = 3.0
repeats = 1
min_repeat_ms = 1
"""
TRIALS = 8


@pytest.fixture
def owner(user: User, lab: Lab) -> User:
    """A user with two boards at a time."""
    user.settle(SETTINGS + lab.section(count=2, request_timeout_s=4, retry_s=0.5))
    return user


def records(user: User) -> list[dict[str, object]]:
    return [item for log in user.root.glob("logs/tuning/*/*.jsonl") for item in RecordLog(log, *FORMAT).read()]


def failures(user: User) -> list[str]:
    """What the journal of the job says of boards that failed."""
    (paths,) = Workspace(user.root).job_list()
    events = read_journal(paths.journal)
    lost = [event.detail for event in events if isinstance(event, StageFailed) and event.outcome == "device-lost"]
    done = [event.summary for event in events if isinstance(event, StageDone)]
    return [*lost, *(said for summary in done for said in summary.get("sessions_failed", ()))]


def waits(user: User) -> list[str]:
    (paths,) = Workspace(user.root).job_list()
    return [event.reason.kind for event in read_journal(paths.journal) if isinstance(event, WaitStarted)]


@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_boards_that_die_or_hang_cost_no_trial(
    owner: User, lab: Lab, models: Path, tmp_path: Path, hangs: bool
) -> None:
    servers = [lab.start_server(supervised=supervised) for supervised in (False, True, *[False] * hangs)]
    owner.ok("submit", models / "mlp.onnx", "--target", "phone", "--trials", TRIALS, "--trials-per-round", 2)
    lab.await_boards(len(servers))
    daemon = owner.start("daemon", "run", "--drain")
    until(lambda: len(records(owner)) >= 2)
    if hangs:
        lab.await_boards(3)  # one that stops before it is free again is offered to nobody, and in nobody's way
        lab.stop(servers[2])
        until(lambda: len(records(owner)) >= 4)
    lab.kill(servers[0])
    _, log = daemon.communicate(timeout=120)
    assert daemon.returncode == 0, log
    (job,) = owner.status()
    assert (job["state"], job["trials_done"]) == ("done", TRIALS)
    assert [record["failure"] for record in records(owner) if record["failure"]] == []
    assert max(owner.trials().values()) == 1
    assert failures(owner) or not hangs, "the board that hangs was in nobody's way"
    _check_export(owner, lab, tmp_path / "lib")


def _check_export(owner: User, lab: Lab, output: Path) -> None:
    """What was tuned is verified on the board that is left, and runs there."""
    printed = owner.ok("export", "mlp", "--output", output, "--source")
    report = json.loads((output / "report.json").read_text())
    assert report["largest_relative_error"] < 1e-3
    assert report["board"]["key"] == "box" and set(report["latency"]) == {"tuned_ms"}
    assert "was not timed there" in printed and not (output / "cpp").exists()
    assert (output / "source" / "kernels.o").exists()
    lab.await_boards(1)
    for words in ([], ["here"]):
        done = subprocess.run(
            [sys.executable, output / "run.py", *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0 and "float32" in done.stdout, done.stderr


def test_a_job_without_any_board_says_what_it_waits_for(owner: User, models: Path) -> None:
    path = owner.root / "autotune.toml"
    text = path.read_text().replace("request_timeout_s = 4", "request_timeout_s = 0.3")
    path.write_text(text.replace("count = 2", "count = 1"))
    owner.ok("submit", models / "mlp.onnx", "--target", "phone", "--trials", 4)
    assert owner.run("daemon", "run", "--drain").returncode == 1
    (job,) = owner.status()
    assert job["trials_done"] == 0
    assert "device-aside" in waits(owner)
    assert len(failures(owner)) >= 3
    assert records(owner) == []


def test_boards_of_an_unknown_section_are_no_target(owner: User, models: Path) -> None:
    done = owner.run("submit", models / "mlp.onnx", "--target", "fone")
    assert done.returncode == 2 and "phone" in done.stderr
