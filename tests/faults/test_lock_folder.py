"""The lock folder of the machine: unsafe, gone, of somebody else, or with locks that are never released."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .conftest import Scene

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
def holder(scene: Scene) -> Iterator[subprocess.Popen[str]]:
    """Somebody who holds all CPUs."""
    yield from holding(scene.locks, *(f"simcpu-{cpu}" for cpu in range(8)))


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


def unsafe(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def link(folder: Path) -> None:
    folder.symlink_to("/tmp")


def file(folder: Path) -> None:
    folder.touch()


@pytest.mark.parametrize(
    ("spoil", "remedy"),
    [
        pytest.param(unsafe, "should run: chmod 1777", marks=pytest.mark.slow),
        pytest.param(link, "is a symbolic link of", marks=pytest.mark.slow),
        (file, "is not a folder; its owner"),
    ],
)
def test_a_folder_that_is_not_safe_pauses_the_daemon_until_it_is(scene: Scene, spoil, remedy: str) -> None:
    scene.jobs(2)
    spoil(scene.locks)
    daemon = scene.daemon()
    scene.until_paused(remedy, str(scene.locks))
    if scene.locks.is_dir() and not scene.locks.is_symlink():
        scene.locks.chmod(0o1777)
    else:
        scene.locks.unlink()
    scene.ends_well(daemon, 2)


@pytest.mark.parametrize("number", ["EROFS", pytest.param("EACCES", marks=pytest.mark.slow)])
def test_a_folder_that_refuses_writes_pauses_the_daemon(scene: Scene, number: str) -> None:
    scene.jobs(1)
    daemon = scene.daemon()
    scene.until_tuning()
    scene.faults.write_text(f"{number} open {scene.locks}/\n")
    scene.until_paused(str(scene.locks))
    scene.faults.unlink()
    scene.ends_well(daemon, 1)


def test_a_lock_that_somebody_keeps_to_themselves_is_named_with_its_owner(scene: Scene) -> None:
    scene.jobs(1)
    scene.locks.mkdir()
    scene.locks.chmod(0o1777)
    for cpu in range(8):
        (scene.locks / f"simcpu-{cpu}.lock").touch(mode=0o600)
    scene.faults.write_text(f"EACCES open {scene.locks}/simcpu-\n")
    daemon = scene.daemon()
    scene.until_paused("should run: chmod 666", "simcpu-")
    scene.faults.unlink()
    scene.ends_well(daemon, 1)


def test_a_folder_that_vanishes_is_made_again(scene: Scene) -> None:
    scene.jobs(2)
    daemon = scene.daemon()
    scene.until_tuning()
    scene.locks.rename(scene.locks.with_name("gone"))
    scene.ends_well(daemon, 2)
    assert scene.locks.is_dir()


def test_who_holds_a_cpu_and_is_stopped_is_named_in_status(scene: Scene, holder: subprocess.Popen[str]) -> None:
    scene.jobs(1)
    holder.send_signal(signal.SIGSTOP)
    daemon = scene.daemon()
    scene.until_job_says(1, "in use by", f"process {holder.pid} of ", "which is stopped", Path(sys.executable).name)
    assert not scene.user.trials()
    holder.kill()
    scene.ends_well(daemon, 1)


def test_who_stops_at_the_turnstile_is_passed_by_after_a_minute(
    scene: Scene, at_turnstile: subprocess.Popen[str]
) -> None:
    scene.jobs(1)
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_locks_are_shared_with_another_user_who_is_named(scene: Scene, public: Path) -> None:
    holding_all = holding(public, *(f"simcpu-{cpu}" for cpu in range(8)), user=NOBODY)
    other = next(holding_all)
    scene.jobs(1)
    daemon = scene.daemon()
    scene.until_job_says(1, f"process {other.pid} of nobody")
    assert not scene.user.trials()
    holding_all.close()
    scene.ends_well(daemon, 1)
