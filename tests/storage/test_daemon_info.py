"""When daemons served, as far as anyone can know."""

from __future__ import annotations

import math
import os
import time

import pytest

from autotune.storage import daemon_info
from autotune.storage.paths import Workspace


def test_a_daemon_that_serves_has_no_end_and_none_has_served_a_new_workspace(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert daemon_info.times_served(workspace) == []
    for at, note in ((1e9, daemon_info.note_start), (1e9 + 10, daemon_info.note_stop), (2e9, daemon_info.note_start)):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        note(workspace)
    assert daemon_info.times_served(workspace) == [(1e9, 1e9 + 10), (2e9, math.inf)]


def test_a_daemon_that_was_killed_served_until_it_last_wrote_of_itself(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = time.time()
    daemon_info.note_start(workspace)
    workspace.daemon_info.touch()
    os.utime(workspace.daemon_info, (begin + 40, begin + 40))
    monkeypatch.setattr(time, "time", lambda: begin + 100)
    daemon_info.note_start(workspace)
    killed, serving = daemon_info.times_served(workspace)
    assert killed[1] == pytest.approx(begin + 40, abs=1) and serving == (pytest.approx(begin + 100), math.inf)


def test_a_disk_that_takes_nothing_stops_nobody(workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    workspace.uptime.mkdir()
    daemon_info.note_start(workspace)
    assert str(workspace.uptime) in caplog.text
