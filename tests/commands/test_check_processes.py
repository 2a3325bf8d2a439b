"""The workers of a workspace are found by what they were started with, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.commands.check import parent, strays, workers
from autotune.storage import formats
from autotune.storage.daemon_info import DaemonInfo
from autotune.storage.identity import Identity
from autotune.storage.paths import Workspace

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")

Start = Callable[..., int]


@pytest.fixture
def worker(workspace: Workspace) -> Iterator[Start]:
    """Starts a real worker, of this workspace or another; it waits for commands."""
    running = []

    def start(named: str = "", folder: Path | None = None) -> int:
        words = [sys.executable, "-m", "autotune.workers.worker", "--workspace", named or str(workspace.root)]
        words += ["--kind", "simulated"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=folder)
        running.append(process)
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        return process.pid

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_worker_is_found_by_its_workspace_and_astray_unless_the_daemon_is_above_it(
    workspace: Workspace, worker: Start, tmp_path: Path
) -> None:
    mine = worker()
    relative = worker(".", workspace.root)
    other = worker(str(tmp_path))
    assert workers(workspace) == {mine, relative}
    assert workers(Workspace(tmp_path)) == {other}
    assert set(strays(workspace)) == {mine, relative}
    formats.write(workspace.daemon_info, DaemonInfo(Identity.current().to_json(), time.time(), "predictive"))
    assert strays(workspace) == []
    assert parent(mine) == os.getpid() and parent(2**22 + 1) == 0


def test_an_orphan_ends_though_its_parent_died_before_it_looked(workspace: Workspace) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    words = [sys.executable, "-m", "autotune.workers.worker", "--workspace", str(workspace.root), "--kind", "simulated"]
    orphan = subprocess.run([*words, "--daemon", str(gone.pid)], stdin=subprocess.DEVNULL, timeout=60)
    assert orphan.returncode == 1
