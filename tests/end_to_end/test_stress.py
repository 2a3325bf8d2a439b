"""Two of everything, many at once, in any order: nobody is confused, and `check` finds nothing in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kills.run import CHAOS
from kills.subject import simulated

from autotune.commands.check import check
from autotune.storage.daemon_info import running_daemon
from autotune.storage.paths import Workspace

from ..waiting import until
from .conftest import User

EXIT_CODES = {0, 2}  # 2: the job is not in a state for it, or is gone
JOBS = 3
STORM = 10


@pytest.fixture
def seed() -> int:
    drawn = random.SystemRandom().randrange(10**6)
    print(f"seed {drawn}")  # noqa: T201  pytest shows it when the test fails
    return drawn


@pytest.fixture
def queue(tmp_path: Path, seed: int) -> Iterator[User]:
    """A workspace whose device does not exist, so that its queue moves fast."""
    root = tmp_path / "queue"
    root.mkdir()
    settings = simulated(seed, "predictive", second=0.02).settings.replace("{locks}", str(tmp_path / "locks"))
    (root / "autotune.toml").write_text(settings)
    yield User(root)
    if (left := running_daemon(Workspace(root))) is not None:  # of a test that failed
        os.kill(left.identity["pid"], signal.SIGKILL)


def enqueue(user: User, name: str) -> subprocess.CompletedProcess[str]:
    words = ["--workspace", str(user.root), name, "1", "12", f"own-{name}", "shared"]
    command = [sys.executable, "-m", "kills.enqueue", *words]
    environment = {**os.environ, "PYTHONPATH": str(CHAOS)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def test_submits_verbs_cleaning_and_a_second_daemon_at_once(queue: User, seed: int) -> None:
    daemon = queue.start("daemon", "run")
    until(lambda: (queue.root / "jobs" / ".daemon.json").exists())
    with ThreadPoolExecutor(JOBS) as pool:
        submits = list(pool.map(lambda number: enqueue(queue, f"net{number}"), range(JOBS)))
    assert sorted(int(done.stdout) for done in submits) == list(range(1, JOBS + 1)), "each acknowledged, no id twice"
    second = queue.run("daemon", "run")
    assert (second.returncode, f"pid {daemon.pid}" in second.stderr) == (75, True)

    chance = random.Random(seed)
    verbs = [["hold"], ["release"], ["cancel"], ["retry"], ["clean", "--finished"], ["submit"]]
    storm = [(chance.choice(verbs), chance.randint(1, JOBS)) for _ in range(STORM)]

    def do(item: tuple[list[str], int]) -> subprocess.CompletedProcess[str]:
        words, job = item
        if words == ["submit"]:
            return enqueue(queue, f"late{job}")
        return queue.run(*words, *([job] if len(words) == 1 else []))

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(do, storm))
    assert {item.returncode for item in done} <= EXIT_CODES, [item.stderr for item in done]
    assert not [item.stderr for item in done if "Traceback" in item.stderr or len(item.stderr.splitlines()) > 1]
    daemon.terminate()
    assert daemon.wait(60) == 143
    assert check(Workspace(queue.root)) == []

    for job in queue.status():
        if job["state"] == "held":
            queue.ok("release", job["id"])
    queue.ok("daemon", "run", "--drain")
    assert {job["state"] for job in queue.status()} <= {"done", "cancelled"}
    assert check(Workspace(queue.root)) == []


@pytest.mark.slow
def test_exported_while_tuned_and_cancelled_while_built(user: User, models: Path, tmp_path: Path) -> None:
    user.ok("submit", models / "mlp.onnx", "--trials", 4000, "--trials-per-round", 4)
    daemon = user.start("daemon", "run")
    until(user.trials)
    user.ok("export", "last", "-o", tmp_path / "library")
    assert (tmp_path / "library" / "model.so").exists()
    building = user.root / "jobs" / ".daemon.json"
    until(lambda: "build" in {item["kind"] for item in json.loads(building.read_text())["running"]})
    user.ok("cancel", "last")
    assert user.run("wait", "last", "--timeout", 60).returncode == 1
    daemon.terminate()
    assert daemon.wait(60) == 143
    assert user.status()[0]["state"] == "cancelled"
    assert user.run("check").returncode == 0
