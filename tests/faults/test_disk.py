"""A disk that fills up, or becomes read-only, under a real daemon: it pauses, says why, loses nothing, and goes on.

The devices are simulated, so that what takes time is the disk's trouble and not TVM.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.storage.paths import JobPaths, Workspace

from .conftest import Scene

_ALONE = ["unshare", "-m"]
_MOUNT = """
set -u
mount -t tmpfs -o size=4m none {disk} && cp -a {workspace}/. {disk} && cd {disk}
autotune() {{ {python} -m autotune "$@"; }}
"""
_FULL = """
waited() {{ for _ in $(seq 600); do grep -q "$1" {log} && return; sleep 0.1; done; echo "no $1"; exit 1; }}
autotune daemon run --drain 2> {log} & daemon=$!
waited trials
dd if=/dev/zero of=filler bs=4k 2> /dev/null
waited paused:
autotune status; autotune daemon status
autotune hold 1; echo "hold: $?"
ls -A jobs | grep -v "^.tmp-$daemon-" # the daemon tries from time to time whether there is room
rm filler
wait $daemon; echo "daemon: $?"; ls -A jobs
autotune status; autotune logs 1
"""
_READ_ONLY = """
mount -o remount,ro {disk}
autotune status
for words in "hold 1" "cancel 1" "daemon run --drain" "daemon start"; do autotune $words; echo "$words: $?"; done
"""


@pytest.fixture
def may_mount(tmp_path: Path) -> None:
    probe = [*_ALONE, "mount", "-t", "tmpfs", "none", str(tmp_path)]
    try:
        allowed = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("may not mount a file system here")


@pytest.fixture
def play(
    may_mount: None,
    workspace: Workspace,
    simulate: Callable[..., None],
    make_job: Callable[..., JobPaths],
    tmp_path: Path,
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a script in a small file system of its own, with a job on a simulated device."""
    simulate(devices=1, speed=20.0)
    make_job(tasks=1, target="simulated", trials=40, trials_per_round=8)
    (tmp_path / "disk").mkdir()

    def run(script: str) -> subprocess.CompletedProcess[str]:
        whole = (_MOUNT + script).format(
            disk=tmp_path / "disk", workspace=workspace.root, log=tmp_path / "daemon.log", python=sys.executable
        )
        return subprocess.run([*_ALONE, "bash", "-c", whole], capture_output=True, text=True, timeout=120)

    return run


def test_a_daemon_on_a_full_disk_pauses_and_goes_on_when_there_is_room(
    play: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = play(_FULL)
    said = done.stdout
    logged = (tmp_path / "daemon.log").read_text()
    assert "the daemon pauses: " in said and "; paused: " in said, said + done.stderr
    assert "hold: 1" in said and "no space left on device" in done.stderr, said + done.stderr
    assert ".tmp" not in said, "what was not written left something behind"
    assert "daemon: 0" in said and "40/40" in said, said + logged
    assert "FAILED" not in said and "set aside" not in said, "it is no stage's fault"
    assert "no space left on device" in logged and "goes on after" in logged and "Traceback" not in logged


def test_on_a_read_only_disk_status_works_and_the_rest_says_so_in_a_line(
    play: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = play(_READ_ONLY)
    assert "waiting" in done.stdout
    for words in ("hold 1", "cancel 1", "daemon run --drain", "daemon start"):
        assert f"{words}: 1" in done.stdout, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 4, done.stderr
    assert all("read-only" in line for line in done.stderr.splitlines()), done.stderr


def test_a_workspace_that_refuses_writes_pauses_the_daemon_each_time(scene: Scene) -> None:
    scene.jobs(2, per_round=3)
    daemon = scene.daemon()
    scene.until_tuning()
    for name in ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EACCES"):
        scene.faults.write_text(f"{name} write {scene.workspace.root}/\n")
        why = os.strerror(getattr(errno, name)).lower()
        scene.until(lambda why=why: re.search(f"paused: .*{why}", scene.said, re.I))
        scene.faults.unlink()
        scene.until_it_goes_on()
    scene.ends_well(daemon, 2)


@pytest.mark.parametrize("call", ["open", *(pytest.param(call, marks=pytest.mark.slow) for call in ("mkdir", "stat"))])
def test_a_workspace_that_refuses_other_calls(scene: Scene, call: str) -> None:
    """What is refused may be a job's or everybody's: it waits, and says for what."""
    scene.jobs(2)
    daemon = scene.daemon()
    scene.until_tuning()
    scene.faults.write_text(f"EIO {call} {scene.workspace.jobs}/\n")
    scene.until(lambda: "paused: " in scene.said or "leaving out" in scene.said or "blocking" in scene.said)
    scene.faults.unlink()
    scene.ends_well(daemon, 2)
