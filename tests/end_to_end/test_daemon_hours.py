"""The daemon in its hours and out of them, and what people are told meanwhile."""

from __future__ import annotations

import json
import time

import pytest

from autotune.cli import _run

from ..waiting import until
from .conftest import User


def hours(begin: float, end: float) -> str:
    """A window on this machine's clock, from and to so many hours from now."""
    clock = (time.strftime("%H:%M", time.localtime(time.time() + 3600 * offset)) for offset in (begin, end))
    return "-".join(clock)


def from_now(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))


@pytest.fixture
def waiting(user, space):
    user.ok("submit", space, "--trials", 2, "--trials-per-round", 2, "-q")
    return user


def test_in_an_open_window_the_queue_is_drained_and_accounted_for(workspace, make_job, simulate):
    simulate(devices=1, speed=100.0)
    make_job(target="simulated", trials=8, submitted_at=time.time() - 60)
    user = User(workspace.root)
    user.ok("daemon", "run", "--drain", "--window", hours(-2, 2))
    (job,) = user.status()
    assert (job["state"], job["trials_done"]) == ("done", 8)
    (times,) = json.loads(user.ok("report", "--all", "--json"))["jobs"]
    assert sum(times["parts"].values()) == pytest.approx(times["wall_s"])
    assert times["wall_s"] == pytest.approx(job["finished_at"] - job["submitted_at"])
    assert all(times["parts"][kind] > 0 for kind in ("search", "build", "measure"))
    assert times["parts"]["stopped"] > 50
    assert "STOPPED" in user.ok("report", 1)
    assert (user.root / "logs" / "estimates.json").exists()


def test_in_a_closed_window_nothing_starts_and_the_daemon_waits_for_it(waiting):
    window = hours(2, 4)
    waiting.settle(f'[daemon]\nwindow = "{window}"\n')
    reason = f"waits for the window at {window[:5]}"
    daemon = waiting.start("daemon", "run", "--drain")
    try:
        until(lambda: waiting.reason() == reason)
        (job,) = waiting.status()
        told = json.loads(waiting.ok("daemon", "status", "--json"))
        (times,) = json.loads(waiting.ok("report", "1", "--json"))["jobs"]
        assert daemon.poll() is None
    finally:
        daemon.terminate()
        assert daemon.wait(30) == 143
    assert (job["state"], job["reason"]) == ("waiting", reason)
    assert 3600 < job["eta_seconds"] < 3 * 3600
    assert told["window"] == window
    assert {item["job"] for item in told["resources"]} == {None}
    assert times["parts"]["waits window"] > 0
    assert waiting.run("daemon", "run", "--drain", "--until", from_now(8)).returncode == 124
    assert not waiting.trials()


def test_a_daemon_in_the_background_takes_the_same_options(user):
    user.ok("daemon", "start", "--window", "03:00-04:00", "--policy", "interleave")
    try:
        told = json.loads(user.ok("daemon", "status", "--json"))
        assert (told["window"], told["policy"]) == ("03:00-04:00", "interleave")
    finally:
        user.ok("daemon", "stop")


def test_a_new_job_and_a_wish_are_noticed_by_an_idle_daemon(waiting, space):
    """Within a second or two, though it looks at nothing meanwhile."""
    waiting.ok("hold", 1)
    daemon = waiting.start("daemon", "run")
    try:
        until(lambda: waiting.reason().startswith("held"))
        time.sleep(1)
        waiting.ok("cancel", 1)
        state = waiting.root / "jobs" / "0001-space" / "state.json"
        until(lambda: json.loads(state.read_text())["state"] == "cancelled")
        assert json.loads(state.read_text())["state"] == "cancelled"
        waiting.ok("submit", space, "--trials", 2, "--trials-per-round", 2, "-q")
        waiting.ok("wait", 2, "--timeout", 120)
    finally:
        daemon.terminate()
        daemon.wait(60)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("daemon", "run", "--window", "22-07"), "--window: '22' is no time of day"),
        (("daemon", "start", "--window", "night"), "--window: 'night' is no window"),
        (("report",), "give JOB..., or --all"),
        (("submit", "MODEL", "--deadline", "2020-01-01"), "--deadline '2020-01-01' is past"),
        (("submit", "MODEL", "--deadline", "soon"), "--deadline: 'soon' is no moment"),
    ],
)
def test_bad_input_is_one_line(user, space, words, told, capsys):
    given = [str(space) if word == "MODEL" else word for word in words]
    assert _run(["--workspace", str(user.root), *given]) == 2
    said = capsys.readouterr().err
    assert told in said and len(said.splitlines()) == 1


def test_a_deadline_is_kept_with_the_job_and_shown(user, space):
    user.ok("submit", space, "--deadline", "07:00", "-q")
    (job,) = user.status()
    assert time.strftime("%H:%M", time.localtime(job["deadline"])) == "07:00"
    assert job["deadline"] > time.time() and not job["misses_deadline"]
    assert "DEADLINE" in user.ok("status") and "07:00" in user.ok("status")
