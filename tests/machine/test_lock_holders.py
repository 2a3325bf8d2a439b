"""Who holds a lock is found through the kernel, and named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.machine.leases import holders
from autotune.ownership import owner_name
from autotune.storage.locks import try_lock

HOLD = "import sys, time, pathlib; from autotune.storage.locks import try_lock\n"
HOLD += "held = try_lock(pathlib.Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cpu-0.lock"


@pytest.fixture
def other(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_free_lock_and_one_that_is_not_there_have_no_holder(path: Path) -> None:
    lease = try_lock(path)
    assert lease is not None
    lease.release()
    assert holders([path, path.with_name("none.lock")]) == []


def test_a_holder_is_named_with_user_and_command_and_said_to_be_stopped(
    path: Path, other: subprocess.Popen[str], tmp_path: Path
) -> None:
    (holder,) = holders([path])
    assert (holder.pid, holder.user, holder.stopped) == (other.pid, owner_name(os.getuid()), False)
    assert str(holder).startswith(f"process {other.pid} of {holder.user} ({sys.executable} -c import sys")
    assert "\n" not in str(holder) and len(holder.command) <= 80
    other.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, other.pid, os.WSTOPPED | os.WNOWAIT)
    (holder,) = holders([path])
    assert str(holder).endswith(", which is stopped")
    assert holders([path], tmp_path) == [], "without /proc nobody is named"
