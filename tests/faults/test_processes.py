"""Processes that are killed, stopped or cannot be started, and streams, signals and clocks that misbehave."""

from __future__ import annotations

import itertools
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from autotune.commands.check import workers

from .conftest import TRIALS, Scene


def first_worker(scene: Scene, daemon: subprocess.Popen[bytes]) -> int:
    """The worker itself, and none of the children that it forks."""
    started = [pid for pid in workers(scene.workspace) if parent(pid) == daemon.pid]
    assert started
    return started[0]


def parent(pid: int) -> int | None:
    """The parent of a process; None if the process has ended, as the children of workers do all the time."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None


@pytest.mark.parametrize("call", ["spawn", pytest.param("fork", marks=pytest.mark.slow)])
def test_a_machine_that_starts_no_more_processes_pauses_the_daemon(scene: Scene, call: str) -> None:
    scene.jobs(1, per_round=TRIALS)
    scene.faults.write_text(f"EAGAIN {call}\n")
    daemon = scene.daemon()
    scene.until_paused("this machine starts no more processes", "ulimit -u")
    assert not scene.user.trials()
    scene.faults.unlink()
    scene.ends_well(daemon, 1)


def test_candidates_for_which_no_process_can_be_started_are_not_blamed(scene: Scene) -> None:
    scene.jobs(2)
    daemon = scene.daemon()
    scene.until_tuning()
    scene.faults.write_text("EAGAIN fork\n")
    scene.until(lambda: "starts no more processes" in scene.said)
    scene.faults.unlink()
    scene.ends_well(daemon, 2)


def test_a_killed_worker_costs_an_attempt_and_one_that_may_not_be_started_pauses_the_daemon(scene: Scene) -> None:
    scene.jobs(2)
    daemon = scene.daemon()
    scene.until_tuning()
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (5, 4096))
    os.kill(first_worker(scene, daemon), signal.SIGKILL)  # another one needs files
    scene.until(lambda: "too many open files" in scene.said.lower())
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (1024, 4096))
    scene.ends_well(daemon, 2, failed_stages=8)


@pytest.mark.parametrize("number", [signal.SIGHUP, pytest.param(signal.SIGQUIT, marks=pytest.mark.slow)])
def test_a_closed_terminal_or_ctrl_backslash_ends_the_daemon_in_order(scene: Scene, number: signal.Signals) -> None:
    scene.jobs(2)
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup a daemon ignores it, as these tests may
    daemon = scene.daemon()
    signal.signal(signal.SIGHUP, inherited)
    scene.until_tuning()
    daemon.send_signal(number)
    assert daemon.wait(30) == 128 + number, scene.said
    assert not scene.workspace.daemon_info.exists()
    scene.ends_well(scene.daemon(), 2)


def test_under_nohup_it_outlives_its_terminal_and_stopped_by_ctrl_z_it_says_so(scene: Scene) -> None:
    scene.jobs(2)
    words = ["nohup", *scene.user.command("daemon", "run", "--drain")]
    with scene.log.open("ab") as log:
        daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    scene.started.append(daemon)
    scene.until_tuning()
    daemon.send_signal(signal.SIGHUP)
    daemon.send_signal(signal.SIGSTOP)  # the system discards SIGTSTP where no shell could continue the process
    scene.until_paused(f"its process is stopped; run: kill -CONT {daemon.pid}")
    daemon.send_signal(signal.SIGCONT)
    scene.ends_well(daemon, 2)


class TestWhatItSays:
    """A daemon that writes what it says to nobody works as others do."""

    def start(self, scene: Scene, stderr: int) -> subprocess.Popen[bytes]:
        scene.jobs(1, per_round=TRIALS)
        words = scene.user.command("daemon", "run", "--drain")
        scene.started.append(subprocess.Popen(words, stderr=stderr, env=scene.environment()))
        os.close(stderr)
        return scene.started[-1]

    def test_without_standard_streams(self, scene: Scene) -> None:
        scene.jobs(1, per_round=TRIALS)
        words = " ".join(scene.user.command("daemon", "run", "--drain"))
        daemon = subprocess.Popen(["sh", "-c", f"exec {words} <&- >&- 2>&-"], env=scene.environment())
        scene.started.append(daemon)
        scene.ends_well(daemon, 1)

    def test_into_a_pipe_that_is_full(self, scene: Scene) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
        scene.ends_well(self.start(scene, writer), 1)
        os.close(reader)

    def test_into_a_pipe_whose_reader_is_gone(self, scene: Scene) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        scene.ends_well(self.start(scene, writer), 1)


def test_as_cron_starts_it_with_names_that_ascii_lacks(scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "Ärger"
    scene.jobs(1, per_round=TRIALS)
    scene.workspace.root.rename(folder)
    scene.workspace.root.symlink_to(folder)
    (folder / "jobs" / "0001-net1" / "übrig.txt").touch()
    bare = {name: None for name in ("HOME", "USER", "LOGNAME", "LC_ALL", "LANG", "PYTHONUTF8", "PYTHONIOENCODING")}
    daemon = scene.daemon("--workspace", str(folder), "daemon", "run", "--drain", **{**bare, "LC_ALL": "C"})
    scene.ends_well(daemon, 1)
    done = subprocess.run(
        scene.user.command("--workspace", str(folder), "status"),
        capture_output=True,
        env=scene.environment(**{**bare, "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
        check=False,
    )
    assert done.returncode == 0 and b"net1" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shift", [-86400, 86400])
def test_a_clock_that_is_set_while_it_runs(scene: Scene, shift: int) -> None:
    scene.jobs(2)
    daemon = scene.daemon()
    scene.until_tuning()
    scene.faults.write_text(f"clock {shift}\n")
    scene.ends_well(daemon, 2)
    assert shifts(scene, shift) > 0, "it was set"


def shifts(scene: Scene, *by: int) -> int:
    """How many moments in the journal of the first job are this far from now."""
    at = [float(part) for part in re.findall(r'"at":([0-9.]+)', scene.workspace.job_list()[0].journal.read_text())]
    return sum(any(abs(moment - time.time() - shift) < 1000 for shift in by) for moment in at)


def test_a_clock_that_jumps_by_hours_in_both_directions_again_and_again(scene: Scene) -> None:
    scene.jobs(2)
    daemon = scene.daemon()
    shifted = [3 * 3600, -5 * 3600, 40000, -40000]
    jumps = itertools.cycle([*shifted, 0])
    scene.until_tuning()
    while daemon.poll() is None:
        scene.faults.write_text(f"clock {next(jumps)}\n")
        time.sleep(0.2)
    scene.ends_well(daemon, 2)
    assert shifts(scene, *shifted) > 0, "it jumped"


def test_settings_that_become_nonsense_pause_the_daemon_until_they_are_mended(scene: Scene) -> None:
    """And a second daemon is refused meanwhile, in a line."""
    scene.jobs(2)
    settings = scene.workspace.config.read_text()
    daemon = scene.daemon()
    scene.until_tuning()
    second = scene.user.run("daemon", "run", "--drain")
    assert (second.returncode, len(second.stderr.splitlines())) == (75, 1)
    assert f"pid {daemon.pid}" in second.stderr
    scene.workspace.config.write_text(settings + "[nonsense]\nx = 1\n")
    scene.until_paused("nonsense")
    scene.workspace.config.write_text(settings)
    scene.ends_well(daemon, 2)
