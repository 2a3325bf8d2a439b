"""A warm worker: loads TVM once, then forks a child for every stage it is told to run.

The daemon starts it by command line. It reads `RunStage` and `KillStage` from standard input. On standard output it
writes `Ready` once TVM is loaded, and then a `StageReport` for every stage: see `autotune.processes.messages`.

The worker itself computes nothing and starts no thread, so that it can always fork safely: a segmentation fault, a
leak or a hang ends with the child. Each child leads its own process group, which is killed as a whole.
When the daemon dies, standard input ends; the worker then kills its children and exits.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from autotune.config import load_config
from autotune.errors import AutotuneError, Busy, ConfigError, DiskProblem, MachineProblem, disk_problem
from autotune.machine.hardware import lent_cpus, pin
from autotune.machine.leases import lease
from autotune.planning.view import ON_DEVICE
from autotune.processes.channel import MessageReader
from autotune.processes.isolate import die_with_parent
from autotune.processes.memory import limit_memory, memory_share
from autotune.processes.messages import Fatal, KillStage, Ready, RunStage, StageReport, receive, send
from autotune.storage.formats import KINDS, SIMULATED
from autotune.storage.paths import Workspace
from autotune.storage.room import has_room
from autotune.workers.fitness import Fitness

# Threads that a library starts on import would not survive the fork.
SINGLE_THREADED = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
# A measurement on the CPU needs all of its CPUs free. While it waits, its turnstile lock keeps newcomers out.
_MEASURE_LEASE_WAIT_S = 30.0
_LEASE_WAIT_S = 0.5
_REASON_LENGTH = 300


@dataclass
class _StageProcess:
    """The child that runs a stage.

    Attributes:
        answers: reads its report, which it writes last.
        started_at, deadline: in monotonic seconds.
        report: the report that has come, if any.
    """

    stage: RunStage
    pid: int
    answers: MessageReader
    started_at: float
    deadline: float
    timed_out: bool = False
    report: StageReport | None = None


@dataclass
class Worker:
    """The loop of one worker process. `commands` and `reports` are its ends of the pipes to the daemon."""

    workspace: Workspace
    commands: MessageReader
    reports: int
    fitness: Fitness = field(default_factory=Fitness)
    _children: dict[int, _StageProcess] = field(default_factory=dict)
    _leaving: bool = False  # when what runs has ended

    def serve(self) -> None:
        """Serve until standard input ends, then kill what runs."""
        send(self.reports, Ready(os.getpid()))
        while not self.commands.ended and (self._children or not self._leaving):
            self._wait()
            self._kill_overdue()
        for child in self._children.values():
            _kill_group(child.pid)

    def _wait(self) -> None:
        """Wait for commands, reports of children or the next deadline, and handle what came."""
        deadlines = [child.deadline for child in self._children.values() if not child.timed_out]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        children = {child.answers.descriptor: child for child in self._children.values()}
        ready, _, _ = select.select([self.commands.descriptor, *children], [], [], timeout)
        for descriptor in ready:
            if descriptor == self.commands.descriptor:
                self._read_commands()
            else:
                self._read_answer(children[descriptor])

    def _read_commands(self) -> None:
        for command in receive(self.commands):
            if isinstance(command, RunStage):
                self._start(command)
            elif isinstance(command, KillStage) and command.id in self._children:
                _kill_group(self._children[command.id].pid)

    def _start(self, stage: RunStage) -> None:
        try:
            self.fitness.check_installation()
        except MachineProblem as problem:
            self._leaving = True
            return send(self.reports, StageReport(stage.id, "unfit", reason=str(problem)))
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            _run_child(self.workspace, stage, self.fitness, writer)
        os.close(writer)
        now = time.monotonic()
        self._children[stage.id] = _StageProcess(stage, pid, MessageReader(reader), now, now + stage.limit_s)

    def _read_answer(self, child: _StageProcess) -> None:
        for message in receive(child.answers):
            if isinstance(message, StageReport):
                child.report = message
                self.fitness.known.add(message.tried)
        if child.answers.ended:
            self._finish(child)

    def _finish(self, child: _StageProcess) -> None:
        """Report a child that closed its pipe: it has ended, or is about to."""
        _, status = os.waitpid(child.pid, 0)
        _kill_group(child.pid)
        os.close(child.answers.descriptor)
        del self._children[child.stage.id]
        seconds = round(time.monotonic() - child.started_at, 4)
        send(self.reports, replace(_report(child, status), seconds=seconds))

    def _kill_overdue(self) -> None:
        for child in self._children.values():
            if not child.timed_out and time.monotonic() >= child.deadline:
                child.timed_out = True
                _kill_group(child.pid)


def _report(child: _StageProcess, status: int) -> StageReport:
    """The report on a child that ended with this status of `waitpid`."""
    id = child.stage.id
    if child.timed_out:
        return StageReport(id, "timeout", reason=f"killed after {child.stage.limit_s:g} s")
    if os.WIFSIGNALED(status):
        return StageReport(id, "crashed", reason=f"killed by {signal.Signals(os.WTERMSIG(status)).name}")
    return child.report or StageReport(id, "crashed", reason=f"ended without a result, status {status}")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _run_child(workspace: Workspace, stage: RunStage, fitness: Fitness, writer: int) -> NoReturn:
    """Run one stage in the forked child and send what became of it."""
    try:
        os.setpgid(0, 0)
        die_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        send(writer, replace(_run(workspace, stage, fitness), tried=fitness.tried))
    finally:
        os._exit(0)


def _run(workspace: Workspace, stage: RunStage, fitness: Fitness) -> StageReport:
    try:
        return StageReport(stage.id, "done", summary=run_stage(workspace, stage, fitness))
    except Busy as busy:
        return StageReport(stage.id, "busy", reason=str(busy))
    except MachineProblem as problem:
        return StageReport(stage.id, "unfit", reason=str(problem))
    except ConfigError as error:
        return StageReport(stage.id, "blocked", reason=str(error))
    except AutotuneError as error:
        return _failed_or_blocked(workspace, stage, error)
    except BaseException as error:
        if isinstance(error, OSError) and disk_problem("use", "", error).passing:
            return _failed_or_blocked(workspace, stage, disk_problem("use", error.filename or "a file", error))
        with contextlib.suppress(OSError):  # the log may be on the disk that is full
            traceback.print_exc()
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[-1] if lines else ''}"
        return StageReport(stage.id, "failed", reason=reason[:_REASON_LENGTH])


def _failed_or_blocked(workspace: Workspace, stage: RunStage, error: AutotuneError) -> StageReport:
    """Report an error. If nobody can write to the disk now, the stage is blocked and runs again later."""
    blocked = isinstance(error, DiskProblem) and (error.passing or not has_room(workspace.jobs, workspace.logs))
    return StageReport(stage.id, "blocked" if blocked else "failed", reason=str(error))


def run_stage(workspace: Workspace, request: RunStage, fitness: Fitness) -> dict[str, Any]:
    """Run a stage on leased CPUs, pinned to them, with its device leased as well.

    Returns:
        The stage's summary, and its `kind`.

    Raises:
        Busy: a CPU or the device is leased by someone else.
        MachineProblem: this machine cannot work for the job's target.
        Exception: whatever the stage raises.
    """
    from autotune.stages.stage import Stage

    config = load_config(workspace.config)
    wait_s = _MEASURE_LEASE_WAIT_S if request.kind in ON_DEVICE else _LEASE_WAIT_S
    with lease(config.machine.lock_folder, request.resources, wait_s):
        share = memory_share(len(request.cpus), len(lent_cpus(config.machine.cpu_slots)))
        limit_memory(config.machine.memory_limit_mb or share)
        if not config.machine.simulated_cpus:
            pin(request.cpus)
        stage = Stage.load(workspace, config, request)
        fitness.check_job(stage.spec, stage.gpu, answers=config.measure.verify)
        kind = stage.file.kind
        return dict(import_module(f"autotune.stages.{kind}").run(stage), kind=kind)


def main() -> None:
    parser = argparse.ArgumentParser(prog="autotune.workers.worker")
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--kind", choices=("llvm", "cuda", SIMULATED), required=True)
    options = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal signals the daemon too, which decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    os.environ.update(SINGLE_THREADED)
    reports = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get between the reports
    try:
        _load(options.kind)
    except AutotuneError as error:
        send(reports, Fatal(str(error)))
        sys.exit(1)
    Worker(Workspace(options.workspace), MessageReader(0), reports).serve()


def _load(kind: str) -> None:
    """Load what stages need, so that the children find it loaded: TVM too, except for simulated devices.

    Raises:
        UnsupportedVersion: the installed TVM is not one that was tested.
    """
    for name in ("filelock", "msgspec", "tomli", *(f"autotune.stages.{stage}" for stage in KINDS)):
        import_module(name)
    if kind != SIMULATED:
        from autotune.tvm_backend.load import load_for_tuning

        load_for_tuning(kind)


if __name__ == "__main__":
    main()
