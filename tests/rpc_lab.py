"""A lab: a real tracker of TVM's RPC and real servers, each a process group of its own, all on the loopback address."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from autotune.device_settings import BoardSettings
from autotune.errors import BoardProblem
from autotune.machine import boards
from autotune.machine.boards import BoardCounts

from .waiting import until

BOARD_SERVER = str(Path(__file__).parents[1] / "autotune" / "tvm_backend" / "board_server.py")
KEY = "box"
TARGET = '{"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 1}'


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@dataclass
class Lab:
    """A tracker and its servers. What they say goes to files in a folder."""

    folder: Path
    port: int = field(default_factory=free_port)
    tracker: subprocess.Popen[bytes] | None = None
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def board(self, **settings: object) -> BoardSettings:
        return BoardSettings(tracker=f"127.0.0.1:{self.port}", key=KEY, target=TARGET, **settings)  # type: ignore[arg-type]

    def section(self, **settings: object) -> str:
        """The section [devices.phone] of autotune.toml."""
        lines = ["[devices.phone]", 'kind = "rpc"', f'tracker = "127.0.0.1:{self.port}"', f'key = "{KEY}"']
        lines += [f"target = '{TARGET}'", *(f"{key} = {value}" for key, value in settings.items())]
        return "\n".join([*lines, ""])

    def start_tracker(self) -> None:
        self.tracker = self._start("-m", "tvm.exec.rpc_tracker", "--host", "127.0.0.1", *self._ports(self.port))
        until(self._answers)

    def kill_tracker(self) -> None:
        if self.tracker is not None:
            _kill(self.tracker)
        self.tracker = None

    def start_server(self, *, supervised: bool = False) -> subprocess.Popen[bytes]:
        """Start TVM's own server, or ours, which starts another one when it has ended."""
        words = ["--tracker", f"127.0.0.1:{self.port}", "--key", KEY, "--host", "127.0.0.1"]
        port = free_port()
        if supervised:
            server = self._start(BOARD_SERVER, *words, "--port", str(port))
        else:
            server = self._start("-m", "tvm.exec.rpc_server", *words, *self._ports(port))
        self.servers.append(server)
        return server

    def await_boards(self, count: int) -> None:
        """Wait until the tracker has so many free boards."""
        until(lambda: self.counts().free >= count)

    def counts(self) -> BoardCounts:
        return boards.counts(self.board())

    def loaded(self) -> list[str]:
        """The libraries that the last process has loaded, in order."""
        logs = sorted(self.folder.glob("*.log"), key=lambda path: int(path.stem))
        return re.findall(r"load_module .*/(\S+)", logs[-1].read_text())

    def kill(self, *servers: subprocess.Popen[bytes]) -> None:
        """kill -9, for servers and all that they have started. Wait until the tracker knows."""
        for server in servers:
            _kill(server)
            self.servers.remove(server)
        if self.tracker is not None:
            until(lambda: self.counts().known <= len(self.servers))

    def stop(self, server: subprocess.Popen[bytes]) -> None:
        """Stop a server and all that it has started, as a machine that hangs does."""
        os.killpg(server.pid, signal.SIGSTOP)

    def close(self) -> None:
        self.kill_tracker()
        self.kill(*self.servers)

    def _answers(self) -> bool:
        with suppress(BoardProblem):
            return self.counts().known >= 0
        return False

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{len(list(self.folder.iterdir()))}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *words], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @staticmethod
    def _ports(port: int) -> tuple[str, ...]:
        return ("--port", str(port), "--port-end", str(port + 1))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
