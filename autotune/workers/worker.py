"""A warm worker: loads TVM once, then forks a child for every stage it is told to run.

The daemon starts it by command line and talks to it in JSON lines. On standard input:

    {"run": {"id": 7, "job": "0003-resnet18", "task": 1, "round": 0, "kind": "search",
             "resources": ["cpu-0"], "cpus": [0], "device": "", "count": 16, "limit_s": 600}}
    {"kill": 7}

On standard output: `{"ready": pid}` once TVM is loaded, then for every stage one line
`{"id": 7, "outcome": "done", "seconds": S, "summary": {}, "reason": ""}`, or failed, busy, blocked, crashed, timeout.

The worker itself computes nothing and starts no thread, so that a fork is always clean: a segmentation fault, a
leak or a hang ends with the child. Each child is the leader of its own process group, which is killed as a whole.
When the daemon dies, standard input ends, and the worker goes and takes its children along.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from autotune import config as settings
from autotune.errors import AutotuneError, Busy, ConfigError, DiskProblem, disk_problem
from autotune.machine.hardware import pin
from autotune.machine.leases import lease
from autotune.processes.isolate import die_with_parent
from autotune.processes.memory import limit_memory, memory_share
from autotune.storage.formats import KINDS, SIMULATED
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.room import has_room

# Threads that a library starts on import would not survive the fork.
SINGLE_THREADED = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
# A measurement on the CPU has to see all of it free; whoever waits at the turnstile keeps newcomers out meanwhile.
_LEASE_WAIT_S = {"measure": 30.0}
_SHORT_WAIT_S = 0.5


@dataclass
class _Running:
    id: int
    pid: int
    reader: int
    started: float
    deadline: float
    limit_s: float
    timed_out: bool = False
    answer: bytes = b""


@dataclass
class Worker:
    """The loop of one worker process."""

    workspace: Workspace
    commands: int
    answers: int
    _running: dict[int, _Running] = field(default_factory=dict)
    _buffer: bytes = b""
    _open: bool = True

    def serve(self) -> None:
        """Serve until standard input ends, then kill what runs."""
        self._say({"ready": os.getpid()})
        while self._open:
            self._wait()
            self._kill_overdue()
        for running in self._running.values():
            _kill_group(running.pid)

    def _wait(self) -> None:
        deadlines = [running.deadline for running in self._running.values() if not running.timed_out]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        readers = {running.reader: running for running in self._running.values()}
        ready, _, _ = select.select([self.commands, *readers], [], [], timeout)
        for reader in ready:
            if reader == self.commands:
                self._read_commands()
            else:
                self._read_answer(readers[reader])

    def _read_commands(self) -> None:
        chunk = os.read(self.commands, 65536)
        self._open = bool(chunk)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if "run" in command:
                self._start(command["run"])
            elif command.get("kill") in self._running:
                _kill_group(self._running[command["kill"]].pid)

    def _start(self, request: dict[str, Any]) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            _run_child(self.workspace, request, writer)
        os.close(writer)
        now = time.monotonic()
        limit = float(request["limit_s"])
        self._running[request["id"]] = _Running(request["id"], pid, reader, now, now + limit, limit)

    def _read_answer(self, running: _Running) -> None:
        chunk = os.read(running.reader, 65536)
        running.answer += chunk
        if not chunk:
            self._finish(running)

    def _finish(self, running: _Running) -> None:
        """The child closed its pipe: it has ended, or is about to."""
        _, status = os.waitpid(running.pid, 0)
        _kill_group(running.pid)
        os.close(running.reader)
        del self._running[running.id]
        answer = _answer(running, status)
        self._say({"id": running.id, "seconds": round(time.monotonic() - running.started, 4), **answer})

    def _kill_overdue(self) -> None:
        for running in self._running.values():
            if not running.timed_out and time.monotonic() >= running.deadline:
                running.timed_out = True
                _kill_group(running.pid)

    def _say(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self.answers, data) :]


def _answer(running: _Running, status: int) -> dict[str, Any]:
    if running.timed_out:
        return {"outcome": "timeout", "reason": f"killed after {running.limit_s:g} s"}
    if os.WIFSIGNALED(status):
        return {"outcome": "crashed", "reason": f"killed by {signal.Signals(os.WTERMSIG(status)).name}"}
    try:
        return dict(json.loads(running.answer))
    except ValueError:
        return {"outcome": "crashed", "reason": f"ended without a result, status {status}"}


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _run_child(workspace: Workspace, request: dict[str, Any], writer: int) -> NoReturn:
    """Run one stage in the forked child and send what became of it."""
    try:
        os.setpgid(0, 0)
        die_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        answer = _run(workspace, request)
        os.write(writer, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _run(workspace: Workspace, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"outcome": "done", "summary": run_stage(workspace, request)}
    except Busy as busy:
        return {"outcome": "busy", "reason": str(busy)}
    except ConfigError as error:
        return {"outcome": "blocked", "reason": str(error)}
    except AutotuneError as error:
        return _trouble(workspace, error)
    except BaseException as error:
        if isinstance(error, OSError) and disk_problem("use", "", error).passing:
            return _trouble(workspace, disk_problem("use", error.filename or "a file", error))
        with contextlib.suppress(OSError):  # the log may be on the disk that is full
            traceback.print_exc()
        lines = str(error).strip().splitlines()
        return {"outcome": "failed", "reason": f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]}


def _trouble(workspace: Workspace, error: AutotuneError) -> dict[str, Any]:
    """A stage that could not write where nobody can has not failed: it is blocked, and runs again when that is over."""
    blocked = isinstance(error, DiskProblem) and (error.passing or not has_room(workspace.jobs, workspace.logs))
    return {"outcome": "blocked" if blocked else "failed", "reason": str(error)}


def run_stage(workspace: Workspace, request: dict[str, Any]) -> dict[str, Any]:
    """Run the stage that a request names, on leased CPUs, pinned to them, with its device leased as well.

    Raises:
        Busy: a CPU or the device is leased by someone else.
        Exception: whatever the stage raises.
    """
    from autotune.stages.stage import Stage

    config = settings.load(workspace.config)
    cpus = [int(cpu) for cpu in request["cpus"]]
    wait_s = _LEASE_WAIT_S.get(request["kind"], _SHORT_WAIT_S)
    with lease(config.machine.lock_folder, request["resources"], wait_s):
        limit_memory(config.machine.memory_limit_mb or memory_share(len(cpus), config.machine.usable_cpus))
        if not config.machine.simulated_cpus:
            pin(cpus)
        stage = Stage.load(
            workspace,
            JobPaths(workspace.jobs / request["job"]),
            config,
            int(request["task"]),
            int(request["round"]),
            cpus,
            int(request["count"]),
            str(request["device"]),
            int(request.get("attempt", 0)),
        )
        kind = stage.file.kind
        return dict(import_module(f"autotune.stages.{kind}").run(stage), kind=kind)


def main() -> None:
    parser = argparse.ArgumentParser(prog="autotune.workers.worker")
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--kind", choices=("llvm", "cuda", SIMULATED), required=True)
    options = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon decides; a terminal signals us both
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    os.environ.update(SINGLE_THREADED)
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get between the answers
    try:
        _load(options.kind)
    except AutotuneError as error:
        os.write(answers, json.dumps({"fatal": str(error)}).encode() + b"\n")
        sys.exit(1)
    Worker(Workspace(options.workspace), commands=0, answers=answers).serve()


def _load(kind: str) -> None:
    """Load what stages need, so that the children find it loaded: TVM, but for a device that does not exist.

    Raises:
        UnsupportedVersion: this TVM was never tested.
    """
    for name in ("filelock", "msgspec", "tomli", *(f"autotune.stages.{stage}" for stage in KINDS)):
        import_module(name)
    if kind != SIMULATED:
        from autotune.tvm_backend.load import load_for_tuning

        load_for_tuning(kind)


if __name__ == "__main__":
    main()
