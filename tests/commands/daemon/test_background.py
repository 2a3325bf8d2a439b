"""A daemon in the background is stopped, also one that exits by itself meanwhile."""

from __future__ import annotations

import subprocess
import time

import pytest

from autotune.commands.daemon import background
from autotune.storage.daemon_formats import DaemonInfo
from autotune.storage.identity import Identity
from autotune.storage.paths import Workspace


def test_without_a_daemon_there_is_nothing_to_stop(workspace: Workspace) -> None:
    assert background.stop(workspace, 1) is None


def test_a_daemon_that_exits_before_it_is_told_to_has_stopped(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still ran when its file was read."""
    process = subprocess.Popen(["sleep", "60"])
    found = DaemonInfo(Identity.of(process.pid).to_json(), time.time(), "predictive")
    process.kill()
    process.wait()
    monkeypatch.setattr(background, "running_daemon", lambda workspace: found)
    assert background.stop(workspace, 1) == process.pid
