"""The daemon's worker processes: one for each kind of target, started when first needed, by command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from autotune.errors import disk_problem
from autotune.storage.paths import Workspace
from autotune.workers.runner import Report, StageRunner

_READY_LIMIT_S = 180.0


@dataclass
class _Process:
    """One worker and the stages it has: their ids, and when the daemon gives up on an answer."""

    kind: str
    popen: subprocess.Popen[bytes]
    deadlines: dict[int, float]
    ready_by: float | None
    buffer: bytes = b""
    stages: int = 0
    fatal: str = ""  # why it could not start

    @property
    def answers(self) -> int:
        assert self.popen.stdout is not None
        return self.popen.stdout.fileno()

    def send(self, message: dict[str, Any]) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(message).encode() + b"\n")
        self.popen.stdin.flush()

    def overdue(self, now: float) -> bool:
        if self.ready_by is not None:
            return now > self.ready_by
        return any(now > deadline for deadline in self.deadlines.values())


class WorkerPool(StageRunner):
    """Starts workers, hands them stages, and reports what became of every one, exactly once.

    A worker that dies, or does not answer within a stage's limit and a grace, is killed with all its children;
    its stages are reported as crashed, and the next stage starts a new worker. So does the stage that comes after
    `stages_each`: the old worker finishes what it has, and goes, so that no leak grows for as long as the daemon.
    """

    def __init__(self, workspace: Workspace, grace_s: float, stages_each: int = 0) -> None:
        self._workspace = workspace
        self._grace_s = grace_s
        self._stages_each = stages_each
        self._processes: dict[str, _Process] = {}
        self._retired: list[_Process] = []

    def run(self, kind: str, request: dict[str, Any]) -> None:
        """Hand a stage to the worker of a target kind; the request's `id` comes back in its report."""
        process = self._fresh_enough(kind) or self._start(kind)
        process.stages += 1
        limit = float(request["limit_s"]) + self._grace_s + (_READY_LIMIT_S if process.ready_by else 0.0)
        process.deadlines[int(request["id"])] = time.monotonic() + limit
        with contextlib.suppress(OSError):  # it has died: `reports` will say so
            process.send({"run": request})

    def _fresh_enough(self, kind: str) -> _Process | None:
        process = self._processes.get(kind)
        if process is None or not self._stages_each or process.stages < self._stages_each:
            return process
        del self._processes[kind]
        if process.deadlines:
            self._retired.append(process)
        else:
            _kill(process)
        return None

    def _all(self) -> list[_Process]:
        return [*self._processes.values(), *self._retired]

    def kill_stage(self, id: int) -> None:
        """Kill one stage, if it still runs; it is reported as crashed."""
        for process in self._all():
            if id in process.deadlines:
                with contextlib.suppress(OSError):
                    process.send({"kill": id})

    def descriptors(self) -> list[int]:
        """File descriptors that become readable when a report is there."""
        return [process.answers for process in self._all()]

    def reports(self, readable: Collection[int]) -> Iterator[Report]:
        """What the descriptors that are readable say, and what became of workers that died or hang."""
        now = time.monotonic()
        for process in self._all():
            ended = False
            if process.answers in readable:
                lines, ended = _read_lines(process)
                yield from filter(None, (self._report(process, line) for line in lines))
            if ended or process.overdue(now):
                yield from self._bury(process)
            elif process in self._retired and not process.deadlines:
                self._retired.remove(process)
                _kill(process)

    def stop(self) -> None:
        """Kill all workers and everything they run."""
        for process in self._all():
            _kill(process)
        self._processes.clear()
        self._retired.clear()

    def _start(self, kind: str) -> _Process:
        command = [sys.executable, "-m", "autotune.workers.worker"]
        command += ["--workspace", str(self._workspace.root), "--kind", kind]
        with self._log(kind) as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
                start_new_session=True,
            )
        process = _Process(kind, popen, {}, time.monotonic() + _READY_LIMIT_S)
        self._processes[kind] = process
        return process

    def _log(self, kind: str) -> BinaryIO:
        path = self._workspace.worker_log(kind)
        try:
            return path.open("ab")
        except OSError as error:
            raise disk_problem("write", path, error) from error

    def _report(self, process: _Process, line: bytes) -> Report | None:
        message = json.loads(line)
        if "id" not in message:
            process.ready_by = None
            process.fatal = message.get("fatal", "")
            return None
        process.deadlines.pop(message["id"], None)
        return Report(**message)

    def _bury(self, process: _Process) -> Iterator[Report]:
        _kill(process)
        if process in self._retired:
            self._retired.remove(process)
        else:
            del self._processes[process.kind]
        log = self._workspace.worker_log(process.kind)
        for id in process.deadlines:
            if process.fatal:  # a TVM that was never tested, say: no stage can help it
                yield Report(id, "unfit", reason=process.fatal)
            else:
                yield Report(id, "crashed", reason=f"the {process.kind} worker died; see {log}")


def _read_lines(process: _Process) -> tuple[list[bytes], bool]:
    chunk = os.read(process.answers, 1 << 16)
    *lines, process.buffer = (process.buffer + chunk).split(b"\n")
    return lines, not chunk


def _kill(process: _Process) -> None:
    """Closing its standard input ends a healthy worker with its children; the signal ends any other."""
    for stream in (process.popen.stdin, process.popen.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.popen.pid, signal.SIGKILL)
    process.popen.wait()
