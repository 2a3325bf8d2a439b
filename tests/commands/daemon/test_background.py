"""A daemon in the background is stopped, and one that is a child of the caller does the work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

import autotune
from autotune.commands.daemon import background
from autotune.commands.daemon.background import DrainingDaemon
from autotune.errors import WorkerCrashed
from autotune.storage import formats
from autotune.storage.daemon_info import DaemonInfo, running_daemon
from autotune.storage.formats import Control
from autotune.storage.identity import Identity
from autotune.storage.paths import JobPaths, Workspace

from ...waiting import until

LIMIT_S = 60.0


def test_without_a_daemon_there_is_nothing_to_stop(workspace: Workspace) -> None:
    assert background.stop(workspace, 1) is None


def test_a_daemon_that_exits_before_it_is_told_to_has_stopped(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still ran when its file was read."""
    process = subprocess.Popen(["sleep", "60"])
    info = DaemonInfo(Identity.of(process.pid).to_json(), time.time(), "predictive")
    process.kill()
    process.wait()
    monkeypatch.setattr(background, "running_daemon", lambda workspace: info)
    assert background.stop(workspace, 1) == process.pid


def test_a_daemon_that_is_stopped_by_ctrl_z_is_told_of_and_ends_when_it_is_told_to(workspace: Workspace) -> None:
    process = subprocess.Popen(["sleep", "60"])
    formats.write(workspace.daemon_info, DaemonInfo(Identity.of(process.pid).to_json(), time.time(), "predictive"))
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    daemon = running_daemon(workspace)
    assert daemon is not None and daemon.trouble == f"its process is stopped; run: kill -CONT {process.pid}"
    assert background.stop(workspace, 5) == process.pid
    assert process.wait(5) == -signal.SIGTERM


def test_a_child_runs_the_queue_and_leaves(
    workspace: Workspace, make_job: Callable[..., JobPaths], simulate: Callable[..., None]
) -> None:
    simulate(search_s=0.0, build_s=0.0, measure_s=0.0, train_s=0.0)
    make_job(1, target="simulated", trials=8)
    job = autotune.open_job(1, workspace.root)
    with DrainingDaemon(workspace) as daemon:
        until(lambda: daemon.keep_alive([job.paths]) or job.progress().ended)
    assert job.progress().trials == 8
    assert running_daemon(workspace) is None


def test_a_child_says_why_a_job_does_not_go_on(
    workspace: Workspace, make_job: Callable[..., JobPaths], simulate: Callable[..., None]
) -> None:
    simulate()
    make_job(1, target="simulated", control=Control("hold"))
    job = autotune.open_job(1, workspace.root)
    with DrainingDaemon(workspace) as daemon, pytest.raises(WorkerCrashed, match="job 1 .net. had ended: held"):
        until(lambda: bool(daemon.keep_alive([job.paths])))
