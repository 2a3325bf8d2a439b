"""Killed, stopped, started twice: nothing measured is lost, nothing is measured twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ..waiting import until

TRIALS = 24


def processes_of(root: Path) -> set[int]:
    """Every process that has this workspace on its command line, which the forked ones inherit."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(root).encode() in words and state != "Z":
                pids.add(int(entry.name))
    return pids - {os.getpid()}


def kill_all(root: Path, daemon: subprocess.Popen[str]) -> None:
    """SIGKILL for the daemon, its workers and their children, in whatever order the kernel lists them."""
    for pid in processes_of(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    daemon.wait()


@pytest.mark.slow
def test_killed_at_random_it_ends_with_every_trial_once(user, models):
    seed = random.SystemRandom().randrange(10**6)
    moments = random.Random(seed)
    user.ok("submit", models / "tiny_cnn.onnx", "--trials", TRIALS, "--trials-per-round", 4)
    logged = 0
    for _ in range(5):
        daemon = user.start("daemon", "run")
        time.sleep(moments.uniform(0.5, 5))
        kill_all(user.root, daemon)
        assert sum(user.trials().values()) >= logged, f"trials were lost (seed {seed})"
        logged = sum(user.trials().values())
    user.ok("daemon", "run", "--drain")
    (job,) = user.status()
    assert (job["state"], job["trials_done"]) == ("done", TRIALS), f"seed {seed}"
    assert set(user.trials().values()) == {1}
    assert sum(user.trials().values()) == TRIALS


def test_workers_die_with_their_daemon(user, models):
    user.ok("submit", models / "tiny_cnn.onnx", "--trials", TRIALS)
    daemon = user.start("daemon", "run")
    until(lambda: len(processes_of(user.root)) >= 3)
    assert len(processes_of(user.root)) >= 3, "a daemon, a worker and a stage"
    daemon.kill()
    daemon.wait()
    until(lambda: not processes_of(user.root), limit_s=5)


@pytest.mark.slow
def test_a_killed_worker_costs_one_attempt(user, models):
    user.ok("submit", models / "mlp.onnx", "--trials", 8, "--trials-per-round", 4)
    daemon = user.start("daemon", "run", "--drain")
    until(lambda: len(processes_of(user.root)) >= 3)
    for pid in processes_of(user.root) - {daemon.pid}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert daemon.wait(180) == 0
    (job,) = user.status()
    assert (job["state"], job["trials_done"]) == ("done", 8)


def test_the_first_signal_finishes_what_runs(user, space):
    user.ok("submit", space, "--trials", 64, "--trials-per-round", 4)
    daemon = user.start("daemon", "run")
    until(user.trials)
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(60) == 130
    until(lambda: not processes_of(user.root), limit_s=5)
    journal = user.ok("logs", "last")
    assert "FAILED" not in journal
    done = user.status()[0]["trials_done"]
    assert 0 < done < 64 and done == sum(user.trials().values())


def test_the_second_signal_stops_at_once(user, tmp_path):
    user.settle("[daemon]\nstop_grace_s = 600\n")
    space = tmp_path / "space.toml"
    space.write_text(
        f"parameters.a = [1, 2]\n[measure]\ntimed = true\ncommand = ['sh', '-c', 'touch {tmp_path}/begun; sleep 300']\n"
    )
    user.ok("submit", space, "--trials", 2)
    daemon = user.start("daemon", "run")
    until((tmp_path / "begun").exists)
    daemon.terminate()
    time.sleep(1)
    assert daemon.poll() is None, "a measurement of minutes is under way, and may finish"
    daemon.terminate()
    assert daemon.wait(10) == 143
    until(lambda: not processes_of(user.root), limit_s=5)
    assert not user.trials(), "what was stopped is not blamed"


def test_a_daemon_in_the_background_starts_and_stops(user):
    assert "daemon started" in user.ok("daemon", "start")
    assert "pid" in user.ok("daemon", "status")
    assert user.run("daemon", "start").returncode == 75
    assert "daemon stopped" in user.ok("daemon", "stop")
    assert user.run("daemon", "status").returncode == 1
    assert user.ok("daemon", "stop") == "no daemon is running\n"


def test_an_empty_queue_is_drained_at_once(user):
    assert user.run("daemon", "run", "--drain", timeout=20).returncode == 0


def test_held_cancelled_and_retried(user, space):
    for name in ("a", "b"):
        user.ok("submit", space, "--name", name, "--trials", 4, "--trials-per-round", 2)
    user.ok("hold", "a")
    user.ok("cancel", "b")
    assert [job["state"] for job in user.status()] == ["held", "cancelled"]
    daemon = user.start("daemon", "run")
    try:
        assert user.run("wait", "a", "--timeout", "1").returncode == 124, "a is held"
        user.ok("release", "a")
        user.ok("wait", "a", "--timeout", 120)
        assert user.run("wait", "b").returncode == 1, "b was cancelled"
        user.ok("retry", "b")
        user.ok("wait", "b", "--timeout", 120)
    finally:
        daemon.terminate()
        daemon.wait(60)
    assert [job["state"] for job in user.status()] == ["done", "done"]
    assert user.ok("clean", "--finished").startswith("removed 2 jobs")
    assert user.status() == []
    assert user.trials(), "the tuning logs outlive the jobs"
    assert user.ok("submit", space, "-q") == "3\n", "the number of a removed job is not given again"
