"""The rig of scenarios that run a daemon in their own process while something breaks: the queue, and what is lost."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.config import load_config
from autotune.daemon.loop import Daemon
from autotune.errors import TimedOut
from autotune.storage import formats
from autotune.storage.daemon_info import ClusterNode, running_daemon
from autotune.storage.formats import SIMULATED, Control, JobSpec, StageFile, TaskSpec
from autotune.storage.journal import StageDone, StageEvent, StageFailed, read
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

PER_ROUND = 8
_MAKE = Path(__file__).parents[1] / "models/make_models.py"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def make_models(folder: Path, *names: str) -> None:
    """Write networks of `make_models.py` into a folder."""
    subprocess.run([sys.executable, _MAKE, *names, "--output", folder], check=True)


def make_job(workspace: Workspace, id: int, tasks: int, trials: int) -> JobPaths:
    specs = tuple(TaskSpec(f"conv{index}", f"{index:016x}", 1, "1x8", 0.5, True) for index in range(tasks))
    spec = JobSpec(
        id=id,
        name="net",
        model="net.onnx",
        target={"kind": SIMULATED},
        target_key=f"simulated-{id}",
        inputs=(),
        tasks=specs,
        trials=trials,
        trials_per_round=PER_ROUND,
        strategy="random",
        sampler="greedy",
        known_at_submit=(0,) * tasks,
        submitted_at=1e9 + id,
    )
    paths = workspace.job(id, "net")
    paths.stages.mkdir(parents=True)
    formats.write(paths.spec, spec)
    formats.write(paths.control, Control())
    for task in range(tasks):
        formats.write(paths.stage(task, 0), StageFile(task, 0, "search"))
    return paths


def events(workspace: Workspace, kind: type[StageEvent]) -> list[Any]:
    return [event for job in workspace.job_list() for event in read(job.journal) if isinstance(event, kind)]


@dataclass
class Trial:
    """A queue that is worked on while something breaks. `seen` are the trials that were in the logs at any time."""

    workspace: Workspace
    limit_s: float
    seen: set[tuple[str, str]] = field(default_factory=set)
    broken: list[dict[str, Any]] = field(default_factory=list)
    _over: bool = False

    def play(self, breaks: Callable[[], None]) -> dict[str, Any]:
        """Run the queue to its end while `breaks` runs beside it, and return what became of it."""
        started = time.time()
        threads = [threading.Thread(target=work, daemon=True) for work in (self._look, breaks)]
        for thread in threads:
            thread.start()
        config = load_config(self.workspace.config)
        try:
            code = Daemon(self.workspace, config, drain=True, until=started + self.limit_s).run()
        except TimedOut as error:
            code = error.exit_code
        self._over = True
        threads[0].join()
        return {"exit": code, "seconds": round(time.time() - started, 1), **self._judged(), "broken": self.broken}

    def note(self, what: str, **more: Any) -> None:
        self.broken.append({"at": round(time.time(), 1), "what": what, "trials": len(self.trials()), **more})
        print(json.dumps(self.broken[-1]), file=sys.stderr, flush=True)

    def trials(self) -> list[tuple[str, str]]:
        logs = sorted(self.workspace.logs.glob("tuning/*/*.jsonl"))
        return [(str(log), trial.hash) for log in logs for trial in TuningLog(log).trials()]

    def wait(self, condition: Callable[[], bool]) -> bool:
        """Wait until it holds; false if the queue has ended before."""
        while not condition():
            if self._over:
                return False
            time.sleep(0.1)
        return True

    def state(self, node: str) -> str:
        shown = self.shown(node)
        return shown.state if shown else ""

    def shown(self, node: str) -> ClusterNode | None:
        """What the daemon says of a node."""
        daemon = running_daemon(self.workspace)
        return next((shown for shown in daemon.nodes if shown.name == node), None) if daemon else None

    def done_on(self, node: str, since: float = 0.0) -> int:
        """How many stages have begun on a node since then, and were done."""
        done = events(self.workspace, StageDone)
        return sum(event.summary.get("node") == node and event.began >= since for event in done)

    def _look(self) -> None:
        while not self._over:
            with suppress(OSError):
                self.seen.update(self.trials())
            time.sleep(0.3)

    def _judged(self) -> dict[str, Any]:
        trials = self.trials()
        jobs = {}
        for paths in self.workspace.job_list():
            state = json.loads(paths.state.read_text())
            spec = json.loads(paths.spec.read_text())
            jobs[paths.folder.name] = [state["state"], sum(task["trials"] for task in state["tasks"]), spec["trials"]]
        failed = Counter(event.outcome for event in events(self.workspace, StageFailed))
        done = Counter(event.summary.get("node") for event in events(self.workspace, StageDone))
        return {
            "jobs": jobs,
            "trials": len(trials),
            "twice": len(trials) - len(set(trials)),
            "lost": len(self.seen - set(trials)),
            "stages_failed": dict(failed),
            "stages_done": dict(done),
        }


def finish(result: dict[str, Any]) -> None:
    """Print what became of a queue, and exit with 1 if a trial was lost or is in a log twice."""
    print(json.dumps(result, indent=1), flush=True)
    sys.exit(1 if result["lost"] or result["twice"] else 0)
