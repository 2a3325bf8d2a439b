"""Break boards and their tracker while a job tunes on them over TVM's RPC, and judge what is left.

python scripts/chaos/boards.py [--model tiny_cnn] [--trials 96] [--server tvm|autotune]

Three RPC servers on this machine are the boards, two of them in use at a time. In the middle of a session one is
killed (SIGKILL), and later another one is stopped (SIGSTOP). Then the tracker is killed, and started again three
seconds later. The servers are TVM's own, or those of `board_server.py`. It takes one to three minutes. Needs
`pip install 'autotune-tvm[rpc]'`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rig import Trial, events, finish, free_port, make_models

from autotune.api.queue import submit
from autotune.device_settings import BoardSettings
from autotune.errors import BoardProblem
from autotune.machine import boards
from autotune.storage.journal import StageDone, StageFailed
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog

_ROOT = Path(__file__).parents[2]
_BOARD_SERVER = str(_ROOT / "autotune/tvm_backend/board_server.py")
_HOST = "127.0.0.1"
_KEY = "box"
_TARGET = '{"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 1}'
_AWAY_S = 3.0  # of the tracker


@dataclass
class Lab:
    """A tracker and servers, each a process group of its own. Servers are known by their ports."""

    folder: Path
    port: int = field(default_factory=free_port)
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def tracker(self) -> str:
        return f"{_HOST}:{self.port}"

    def start_tracker(self) -> None:
        self._start(self.port, "-m", "tvm.exec.rpc_tracker")

    def start_server(self, own: bool) -> int:
        port = free_port()
        command = (_BOARD_SERVER,) if own else ("-m", "tvm.exec.rpc_server")
        self._start(port, *command, "--tracker", self.tracker, "--key", _KEY)
        return port

    def start_other(self, python: str) -> None:
        """Start a server with the Python of another machine, which need not be able to start itself again."""
        self._start(free_port(), _BOARD_SERVER, "--once", "--tracker", self.tracker, "--key", _KEY, python=python)

    def signal(self, port: int, number: signal.Signals) -> None:
        """Send a signal to a server, or to the tracker, and to all that it has started."""
        os.killpg(self.running[port].pid, number)

    def stop_in_session(self, port: int) -> bool:
        """Stop a server if a client is connected to it; it goes on if the client leaves meanwhile."""
        if not self._in_session(port):
            return False
        self.signal(port, signal.SIGSTOP)
        time.sleep(0.1)
        if not self._in_session(port):
            self.signal(port, signal.SIGCONT)
            return False
        return True

    def answers(self) -> bool:
        """Whether the tracker does."""
        with suppress(BoardProblem):
            return self._counts().known >= 0
        return False

    def free(self) -> int:
        """How many boards the tracker could lend now."""
        return self._counts().free if self.answers() else 0

    def _counts(self) -> boards.BoardCounts:
        return boards.counts(BoardSettings(tracker=self.tracker, key=_KEY, target=_TARGET))

    def _in_session(self, port: int) -> bool:
        connections = psutil.net_connections("tcp")
        return any(
            connection.status == psutil.CONN_ESTABLISHED and connection.laddr and connection.laddr.port == port
            for connection in connections
        )

    def _start(self, port: int, *command: str, python: str = sys.executable) -> None:
        words = [*command, "--host", _HOST, "--port", str(port)]
        if "-m" in command:
            words += ["--port-end", str(port + 1)]
        with (self.folder / f"{port}.out").open("ab") as log:
            self.running[port] = subprocess.Popen([python, *words], stdout=log, stderr=log, start_new_session=True)


@contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    started = Lab(folder)
    try:
        started.start_tracker()
        yield started
    finally:
        for port, process in started.running.items():
            with suppress(ProcessLookupError):
                started.signal(port, signal.SIGKILL)
            process.wait()


def make_workspace(root: Path, tracker: str) -> Workspace:
    workspace = Workspace(root / "workspace")
    for folder in (workspace.jobs, workspace.logs):
        folder.mkdir(parents=True)
    lines = ["[machine]", f'lock_dir = "{root / "locks"}"', "[measure]", "timeout_s = 5.0", "min_repeat_ms = 100"]
    lines += ["[devices.phone]", 'kind = "rpc"', f'tracker = "{tracker}"', f'key = "{_KEY}"', f"target = '{_TARGET}'"]
    lines += ["count = 2", "request_timeout_s = 5", "retry_s = 5"]
    workspace.config.write_text("\n".join(lines) + "\n")
    return workspace


def broken(here: Lab, trial: Trial, servers: list[int], budget: int) -> None:
    """Break one thing after another, each a quarter of the budget after the last."""

    def reached(quarters: int) -> bool:
        return trial.wait(lambda: len(trial.trials()) >= quarters * budget // 4)

    for quarters, port, number in ((1, servers[0], signal.SIGKILL), (2, servers[1], signal.SIGSTOP)):
        if not (reached(quarters) and trial.wait(lambda port=port: here.stop_in_session(port))):  # type: ignore[misc]
            return
        here.signal(port, number)
        trial.note(number.name, server=f"{_HOST}:{port}")
    if reached(3):
        here.signal(here.port, signal.SIGKILL)
        here.running[here.port].wait()
        trial.note("tracker killed")
        time.sleep(_AWAY_S)
        here.start_tracker()
        if trial.wait(here.answers):
            trial.note("tracker answers")


def failures(workspace: Workspace) -> list[str]:
    """What the journals say of boards that failed: in stages that went on, and in those that were given up."""
    on = [said for event in events(workspace, StageDone) for said in event.summary.get("sessions_failed", ())]
    lost = [event for event in events(workspace, StageFailed) if event.outcome == "device-lost"]
    return [*on, *(event.detail for event in lost)]


def blamed(workspace: Workspace) -> list[str]:
    """Candidates whose trials have failed on a board. Those that could not be built are not counted."""
    trials = [trial for log in workspace.logs.glob("tuning/*/*.jsonl") for trial in TuningLog(log).trials()]
    return [f"{trial.hash}: {trial.failure}" for trial in trials if trial.failure and trial.failure.stage != "build"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny_cnn", help="one of make_models.py")
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--server", choices=("tvm", "autotune"), default="tvm")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which the daemon stops")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, lab(Path(name)) as here:
        root = Path(name)
        servers = [here.start_server(options.server == "autotune") for _ in range(3)]
        workspace = make_workspace(root, here.tracker)
        make_models(root, options.model)
        submit(root / f"{options.model}.onnx", target="phone", trials=options.trials, workspace=workspace.root)
        while here.free() < len(servers):
            time.sleep(0.1)
        trial = Trial(workspace, options.limit)
        verdict: dict[str, Any] = trial.play(lambda: broken(here, trial, servers, options.trials))
        verdict |= {"boards_failed": failures(workspace), "candidates_blamed": blamed(workspace)}
        finish(verdict)


if __name__ == "__main__":
    main()
