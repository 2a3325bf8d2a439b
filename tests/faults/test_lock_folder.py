"""The lock folder of the machine: unsafe, gone, of somebody else, or with locks that are never released."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .conftest import TRIALS, Scene

NOBODY = 65534
HOLD = """
import os, sys, time
from pathlib import Path
import filelock
from autotune.storage.locks import ensure_lock_folder, try_lock
os.setuid(int(sys.argv.pop(1)))
ensure_lock_folder(Path(sys.argv[1]))
held = [try_lock(Path(sys.argv[1]) / f"{name}.lock") for name in sys.argv[2:]]
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def at_turnstile(scene: Scene) -> Iterator[subprocess.Popen[str]]:
    """Somebody who holds the turnstile."""
    yield from holding(scene.locks, "turnstile")


def holding(folder: Path, *names: str, user: int | None = None) -> Generator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", HOLD, str(os.geteuid() if user is None else user), str(folder), *names]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_file_in_its_place_and_locks_kept_by_somebody_pause_the_daemon_until_both_are_mended(scene: Scene) -> None:
    scene.jobs(1, per_round=TRIALS)
    scene.locks.touch()
    daemon = scene.daemon()
    scene.until_paused("is not a folder; its owner", str(scene.locks))
    scene.faults.write_text(f"EACCES open {scene.locks}/simcpu-\n")
    scene.locks.unlink()
    scene.locks.mkdir()
    scene.locks.chmod(0o1777)
    for cpu in range(8):
        (scene.locks / f"simcpu-{cpu}.lock").touch(mode=0o600)
    scene.until_paused("should run: chmod 666", "simcpu-")
    assert not scene.user.trials()
    scene.faults.unlink()
    scene.ends_well(daemon, 1)


def test_a_folder_that_refuses_writes_pauses_the_daemon_and_one_that_vanishes_is_made_again(scene: Scene) -> None:
    scene.jobs(2, per_round=3)
    daemon = scene.daemon()
    scene.until_tuning()
    for name in ("EROFS", "EACCES"):
        scene.faults.write_text(f"{name} open {scene.locks}/\n")
        scene.until_paused(str(scene.locks))
        scene.faults.unlink()
        scene.until_it_goes_on()
    scene.locks.rename(scene.locks.with_name("gone"))
    scene.ends_well(daemon, 2)
    assert scene.locks.is_dir()


def test_who_stops_at_the_turnstile_is_passed_by_after_a_minute(
    scene: Scene, at_turnstile: subprocess.Popen[str]
) -> None:
    scene.jobs(1, per_round=TRIALS)
    at_turnstile.send_signal(signal.SIGSTOP)
    daemon = scene.daemon()
    scene.until_job_says(1, "in use by", f"process {at_turnstile.pid} of ", "which is stopped")
    long_ago = time.time() - 120
    os.utime(scene.locks / "turnstile.lock", (long_ago, long_ago))
    scene.ends_well(daemon, 1)
    assert at_turnstile.poll() is None, "it still holds it"


@pytest.fixture
def public(scene: Scene) -> Iterator[Path]:
    """A lock folder that all users of this machine reach."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-locks-"))
    folder.chmod(0o1777)
    scene.workspace.config.write_text(scene.workspace.config.read_text().replace(str(scene.locks), str(folder)))
    yield folder
    shutil.rmtree(folder)


def test_who_holds_all_cpus_and_is_stopped_is_named_in_status(scene: Scene, public: Path) -> None:
    """Where root can act as another user, it is another user."""
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    holding_all = holding(public, *(f"simcpu-{cpu}" for cpu in range(8)), user=user)
    other = next(holding_all)
    other.send_signal(signal.SIGSTOP)
    scene.jobs(1, per_round=TRIALS)
    daemon = scene.daemon()
    named = f"process {other.pid} of {pwd.getpwuid(user).pw_name}"
    scene.until_job_says(1, "in use by", named, "which is stopped", Path(sys.executable).name)
    assert not scene.user.trials()
    holding_all.close()
    scene.ends_well(daemon, 1)
