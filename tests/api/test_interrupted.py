"""Ctrl-C in `autotune.tune` ends it at once, leaves nothing behind, and loses no trial."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import autotune
from autotune.storage.daemon_info import running_daemon
from autotune.storage.identity import runs
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog

from ..waiting import until

LIMIT_S = 120.0
TUNE = "import sys, autotune; print(autotune.tune(sys.argv[1], workspace=sys.argv[2], trials=8).progress().trials)"
SPACE = """[parameters]
a = [1, 2, 3, 4, 5, 6, 7, 8]
[measure]
command = ["sh", "-c", "test -e {stuck} && echo $$ > {pid} && sleep 600; echo 1"]
number = "([0-9.]+)"
"""


def tuning(workspace: Workspace, space: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", TUNE, str(space), str(workspace.root)]
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a job in the background ignores
    )


def logged(workspace: Workspace) -> int:
    return sum(len(TuningLog(log).entries()) for log in workspace.tuning.glob("*/*.jsonl"))


def test_ctrl_c_leaves_the_trials_so_far_and_no_process_and_a_further_call_goes_on(
    workspace: Workspace, tmp_path: Path
) -> None:
    with workspace.config.open("a") as file:
        file.write("[daemon]\nstop_grace_s = 600\n[job]\ntrials_per_round = 2\n")
    stuck = tmp_path / "stuck"
    pid = tmp_path / "pid"
    space = tmp_path / "space.toml"
    space.write_text(SPACE.replace("{stuck}", str(stuck)).replace("{pid}", str(pid)))
    for interrupt in (os.kill, os.killpg):  # the process alone, and all that its terminal has
        process = tuning(workspace, space)
        until(lambda: logged(workspace))
        stuck.touch()
        until(lambda: pid.exists() and pid.read_text())
        before = logged(workspace)
        interrupt(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
        assert said.strip().endswith("KeyboardInterrupt") and process.returncode == -signal.SIGINT
        assert running_daemon(workspace) is None and not runs(int(pid.read_text()))
        assert logged(workspace) == before > 0
        stuck.unlink()
        pid.unlink()
    process = tuning(workspace, space)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    assert logged(workspace) == 8 and [job.progress().state for job in autotune.jobs(workspace.root)] == ["done"] * 3
