"""A sweep that is killed, and started again, ends with every point once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.storage.formats import JobSpec, read

from .conftest import User

SUITE = """\
models = ["mlp.onnx"]
targets = ["simulated"]
strategies = ["random", "beam"]
trials = [12]
seeds = [0, 1, 2]
"""


def kill_when(user: User, suite: Path, ready: Callable[[], bool]) -> None:
    """Kill a sweep and its daemon as soon as something is so."""
    sweep = user.start("sweep", suite)
    while not ready():
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.02)
    children = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split()
    for pid in (sweep.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    sweep.communicate()


@pytest.mark.slow
def test_every_point_is_there_once_after_two_kills(user: User, models: Path, tmp_path: Path) -> None:
    device = '[devices.gpu0]\nkind = "simulated"\nspeed = 20.0\n'
    (user.root / "autotune.toml").write_text(f'[machine]\nlock_dir = "{user.root}/locks"\nsimulated_cpus = 8\n{device}')
    suite = tmp_path / "night.toml"
    suite.write_text(SUITE.replace("mlp.onnx", str(models / "mlp.onnx")))
    kill_when(user, suite, lambda: len(list(user.root.glob("jobs/0*"))) >= 2)
    kill_when(user, suite, lambda: len(list(user.root.glob("logs/tuning/*/*.jsonl"))) >= 2)
    result = json.loads(user.ok("sweep", suite, "--json"))
    assert [(point["strategy"], point["seed"], point["state"]) for point in result["points"]] == [
        (strategy, seed, "done") for strategy in ("random", "beam") for seed in (0, 1, 2)
    ]
    assert len(user.status()) == 6 and sum(user.trials().values()) == 6 * 12
    specs = [read(JobSpec, path) for path in user.root.glob("jobs/*/spec.json")]
    assert len({spec.target_key for spec in specs}) == 6, "points share no trials"
    assert user.run("check").returncode == 0, "no log has a candidate twice"
    before = user.trials()
    assert json.loads(user.ok("sweep", suite, "--json")) == result
    assert user.trials() == before
