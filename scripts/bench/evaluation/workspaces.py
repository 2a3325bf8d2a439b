"""Workspaces of an evaluation: settings, the real daemon on them, and what its journals say."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure_daemon import cpu_s

from autotune.commands.logs import events
from autotune.storage.journal import StageDone
from autotune.storage.paths import Workspace


@dataclass(frozen=True)
class Ran:
    """A stage that ended: what it was, when it began (epoch seconds), how long it took, its candidates (`count`).

    A search's `steps` are the configurations that it scored.
    """

    job: int
    kind: str
    task: int
    round: int
    begin: float
    seconds: float
    count: int
    steps: int


def make(root: Path, settings: str) -> Workspace:
    """An empty workspace with these settings. A folder that is there already is not used again."""
    root.mkdir(parents=True)
    workspace = Workspace(root)
    workspace.config.write_text(settings)
    return workspace


def command(workspace: Workspace, *words: object) -> list[str]:
    return [sys.executable, "-m", "autotune", "--workspace", str(workspace.root), *map(str, words)]


def call(workspace: Workspace, *words: object) -> str:
    """Run a command that must succeed, and return its standard output."""
    done = subprocess.run(command(workspace, *words), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def drain(workspace: Workspace, policy: str) -> dict[str, float]:
    """Run the real daemon until its queue is empty: wall seconds, and CPU seconds of the daemon process alone."""
    begun = time.time()
    with (workspace.root / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(command(workspace, "daemon", "run", "--drain", "--policy", policy), stderr=log)
        cpu = _watch(daemon)
    if daemon.returncode:
        raise SystemExit(f"the daemon ended with {daemon.returncode}; see {workspace.root}/daemon.log")
    return {"begun": begun, "wall_s": time.time() - begun, "daemon_cpu_s": cpu}


def _watch(daemon: subprocess.Popen[bytes]) -> float:
    """Wait for a daemon; returns the CPU seconds that it itself used, without its workers."""
    used = 0.0
    while daemon.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            used = max(used, cpu_s(daemon.pid))
        time.sleep(0.2)
    return used


def stages(workspace: Workspace) -> list[Ran]:
    """All stages that ended, from the journals, in order of their beginning."""
    ended = []
    for paths in workspace.job_list():
        for event in events(paths, follow=False):
            if isinstance(event, StageDone):
                count = sum(int(event.summary.get(key) or 0) for key in ("built", "measured", "failed"))
                which = (paths.id, event.kind, event.task, event.round)
                steps = int(event.summary.get("steps") or 0)
                ended.append(Ran(*which, event.at - event.seconds, event.seconds, count, steps))
    return sorted(ended, key=lambda ran: ran.begin)


def status(workspace: Workspace) -> list[dict[str, Any]]:
    return list(json.loads(call(workspace, "status", "--json"))["jobs"])
