"""The daemon's worker processes: one for each kind of target, started when first needed, by command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import DiskProblem
from autotune.processes.interrupts import signal_name
from autotune.processes.message_stream import MessageReader
from autotune.processes.messages import Fatal, KillStage, Message, Ready, RunStage, StageReport, receive, send
from autotune.regular_file import truncate
from autotune.storage.atomic import publish_bytes
from autotune.storage.paths import Workspace
from autotune.workers import daemon_child
from autotune.workers.stage_runner import LEASE_WAIT_S, StageRunner

# A worker loads TVM before it is ready, perhaps from a slow disk.
_READY_LIMIT_S = 180.0


@dataclass
class _WorkerProcess:
    """One worker and the stages it has."""

    kind: str  # the kind of target it was started for
    popen: subprocess.Popen[bytes]
    answers: MessageReader  # reads what it reports
    deadlines: dict[int, float]  # when to give up on it, in monotonic seconds, by the id of each of its stages
    ready_by: float | None  # when to give up on its start; None once it is ready
    stages: int = 0  # how many stages it was given
    fatal: str = ""  # why it cannot run any stage

    def send(self, message: Message) -> None:
        assert self.popen.stdin is not None
        send(self.popen.stdin.fileno(), message)

    def overdue(self, now: float) -> bool:
        if self.ready_by is not None:
            return now > self.ready_by
        return any(now > deadline for deadline in self.deadlines.values())


class WorkerPool(StageRunner):
    """Runs stages on this machine, in one worker process for each kind of target.

    A worker that dies, or does not answer within a stage's limit and a grace, is killed with all its children.
    Its stages are reported as crashed, and the next stage starts a new worker.

    A worker is also replaced after `stages_each` stages, so that no leak grows for as long as the daemon runs: the
    old one finishes what it has, and goes.

    Args:
        grace_s: Seconds that a worker may take to kill a stage at its limit and say so.
        stages_each: How many stages a worker is given; 0 for no limit.
        log_bytes: How long the file may be that a worker's standard error goes to.
    """

    def __init__(self, workspace: Workspace, grace_s: float, stages_each: int = 0, log_bytes: int = 10_000_000) -> None:
        self._workspace = workspace
        self._grace_s = grace_s
        self._stages_each = stages_each
        self._log_bytes = log_bytes
        self._processes: dict[str, _WorkerProcess] = {}
        self._retired: list[_WorkerProcess] = []

    def run(self, kind: str, request: RunStage) -> None:
        """Hand a stage to the worker of a target kind, which is started if there is none. See `StageRunner`."""
        shorten(self._workspace.worker_log(kind), self._log_bytes)
        process = self._worker_in_use(kind) or self._start(kind)
        process.stages += 1
        limit_s = request.limit_s + LEASE_WAIT_S[request.kind] + self._grace_s
        limit_s += _READY_LIMIT_S if process.ready_by else 0.0
        process.deadlines[request.id] = time.monotonic() + limit_s
        with contextlib.suppress(OSError):  # it has died: `reports` will say so
            process.send(request)

    def _worker_in_use(self, kind: str) -> _WorkerProcess | None:
        """The worker of a target kind; None if there is none, or if it has had its number of stages."""
        process = self._processes.get(kind)
        if process is None or not self._stages_each or process.stages < self._stages_each:
            return process
        del self._processes[kind]
        if process.deadlines:
            self._retired.append(process)
        else:
            daemon_child.end(process.popen)
        return None

    def _all(self) -> list[_WorkerProcess]:
        return [*self._processes.values(), *self._retired]

    def kill_stage(self, id: int) -> None:
        """Tell the worker that has a stage to kill it. See `StageRunner`."""
        for process in self._all():
            if id in process.deadlines:
                with contextlib.suppress(OSError):
                    process.send(KillStage(id))

    def descriptors(self) -> list[int]:
        """The standard outputs of the workers. See `StageRunner`."""
        return [process.answers.descriptor for process in self._all()]

    def reports(self, readable: Collection[int]) -> Iterator[StageReport]:
        """Yield what the workers report, and what became of the stages of workers that died or hang."""
        now = time.monotonic()
        for process in self._all():
            if process.answers.descriptor in readable:
                yield from filter(None, (self._take(process, message) for message in receive(process.answers)))
            if process.answers.ended or process.overdue(now):
                yield from self._give_up(process)
            elif process in self._retired and not process.deadlines:
                self._retired.remove(process)
                daemon_child.end(process.popen)

    def stop(self) -> None:
        """Kill all workers and everything they run."""
        for process in self._all():
            daemon_child.end(process.popen)
        self._processes.clear()
        self._retired.clear()

    def _start(self, kind: str) -> _WorkerProcess:
        options = ("--workspace", str(self._workspace.root), "--kind", kind, "--daemon", str(os.getpid()))
        log = self._workspace.worker_log(kind)
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        popen = daemon_child.start("autotune.workers.worker", log, *options, variables=order)
        assert popen.stdout is not None
        answers = MessageReader(popen.stdout.fileno())
        process = _WorkerProcess(kind, popen, answers, {}, time.monotonic() + _READY_LIMIT_S)
        self._processes[kind] = process
        return process

    def _take(self, process: _WorkerProcess, message: Message) -> StageReport | None:
        if isinstance(message, StageReport):
            process.deadlines.pop(message.id, None)
            return message
        if isinstance(message, Ready):
            process.ready_by = None
        elif isinstance(message, Fatal):
            process.fatal = message.reason
        return None

    def _give_up(self, process: _WorkerProcess) -> Iterator[StageReport]:
        """Kill a worker and report its stages: as crashed, or as unfit if it could not even start."""
        daemon_child.end(process.popen)
        death = _death(process)
        if process in self._retired:
            self._retired.remove(process)
        else:
            del self._processes[process.kind]
        log = self._workspace.worker_log(process.kind)
        for id in process.deadlines:
            if process.fatal:  # a TVM that was never tested, say: no stage can help it
                yield StageReport(id, "unfit", reason=process.fatal)
            else:
                yield StageReport(id, "crashed", reason=f"the {process.kind} worker {death}; see {log}")


def _death(process: _WorkerProcess) -> str:
    """Say how a worker ended that was given up. Its exit status was fixed before it closed its standard output."""
    if not process.answers.ended:
        return "did not answer and was ended"
    status = process.popen.returncode
    return f"died ({signal_name(-status) if status < 0 else f'status {status}'})"


def shorten(path: Path, most: int) -> None:
    """Move what workers print to `NAME.1` once a file has more than `most` bytes; of more than that, the end.

    Who has the file open for appending goes on in it. What is written in that moment may be lost. An error is ignored.

    Args:
        path: The file, of which there may be none.
        most: How many bytes it may have.
    """
    with contextlib.suppress(OSError, DiskProblem):
        size = os.stat(path).st_size
        if size <= most:
            return
        with open(path, "rb") as file:
            file.seek(size - most)
            publish_bytes(path.with_name(path.name + ".1"), file.read(most))
        truncate(path, 0)
