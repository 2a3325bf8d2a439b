"""Jobs that share a task share what the daemon knows of its log, and spend one budget of trials on it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from autotune.config import load_config
from autotune.daemon import dispatcher
from autotune.daemon.loop import Daemon
from autotune.daemon.task_logs import Follower, TaskLogs
from autotune.storage.formats import Failure, Trial
from autotune.storage.job_files import read_state
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

from .test_loop import ManualClock, ScriptedRunner, daemon
from .test_no_times import Measuring


def trial(number: int, time_us: float | None = 5.0, job: str = "0001-net", round: int = 0) -> Trial:
    failure = None if time_us else Failure("build", "error", "no")
    return Trial(f"{number:016x}", [], [], (time_us,) if time_us else (), failure, job, round, 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


class TestTaskLog:
    def test_it_has_what_planning_needs(self, path: Path) -> None:
        trials = [trial(1, None), trial(2, 7.0, "host:/w/jobs/0001-net", 9), trial(3, 8.0, round=4), trial(4, 6.0)]
        TuningLog(path).add(trials)
        log = TaskLogs().of(path)
        assert log.refresh() and not log.refresh()
        assert log.running_best == (math.inf, 7.0, 7.0, 6.0)
        assert [log.last_round(job) for job in ("0001-net", "0002-net")] == [4, -1]

    def test_all_followers_are_told_of_what_one_has_read(self, path: Path) -> None:
        logs = TaskLogs()
        followers = [Follower(), Follower()]
        mine = logs.of(path)
        theirs = logs.of(path)
        assert mine is theirs
        for follower in followers:
            mine.followers.add(follower)
            follower.changed = False
        TuningLog(path).add([trial(1)])
        assert mine.refresh()
        assert [follower.changed for follower in followers] == [True, True]
        assert theirs.running_best == (5.0,)

    def test_a_log_that_was_replaced_is_read_anew(self, path: Path) -> None:
        TuningLog(path).add([trial(1, 3.0), trial(2, 2.0, round=8)])
        log = TaskLogs().of(path)
        log.refresh()
        path.unlink()
        TuningLog(path).add([trial(3, 9.0)])
        assert log.refresh()
        assert (log.running_best, log.last_round("0001-net")) == ((9.0,), 0)

    def test_each_log_has_its_turn(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("autotune.daemon.task_logs._LOOKED_AT", 2)
        logs = TaskLogs()
        kept = [logs.of(tmp_path / name) for name in "abcde"]
        assert [log for _ in range(3) for log in logs.due()] == kept
        del kept[2:]
        assert logs.due() == kept  # those that nobody follows are gone


def test_jobs_that_have_yet_to_take_in_trials_spend_none_twice(
    workspace: Workspace,
    make_job: Callable[..., JobPaths],
    simulate: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "_TAKEN_IN_AT_ONCE", 0)
    simulate(devices=2, speed=1000.0)
    jobs = [
        make_job(id, f"net{id}", tasks=1, target="simulated", target_key="simulated", trials=8, trials_per_round=4)
        for id in range(1, 6)
    ]
    Daemon(workspace, load_config(workspace.config), drain=True, until=time.time() + 60).run()
    assert [read_state(job).state for job in jobs] == ["done"] * 5
    assert len(TuningLog(workspace.tuning_log("simulated", f"{0:016x}").records).trials()) == 8


def test_many_jobs_that_end_with_the_same_trials_all_end_at_once(
    workspace: Workspace, make_job: Callable[..., JobPaths], simulate: Callable[..., None]
) -> None:
    simulate(devices=1)
    with patch("os.fsync"):
        jobs = {
            job.folder.name: Measuring(workspace, job)
            for id in range(1, 101)
            for job in [make_job(id, f"net{id}", tasks=1, target="simulated", trials=8, trials_per_round=8)]
        }
        for measuring in jobs.values():
            measuring.well = True
        clock = ManualClock()
        runner = ScriptedRunner(clock, lambda stage: jobs[stage.job](stage))
        assert daemon(workspace, clock, runner, drain=True).run() == 0
    assert len(runner.started) == 2  # the first batch of a task is half of the budget
    last_start, _ = runner.started[-1]
    assert clock.monotonic() - last_start < 10  # a plan for each job would take a turn of the loop for each
