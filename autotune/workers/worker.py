"""A warm worker: loads TVM once, then forks a child for every stage it is told to run.

The daemon starts it by command line. It reads `RunStage` and `KillStage` from standard input. On standard output it
writes `Ready` once TVM is loaded, and then a `StageReport` for every stage: see `autotune.processes.messages`.

The worker itself computes nothing and starts no thread, so that it can always fork safely: a segmentation fault, a
leak or a hang ends with the child. Each child leads its own process group, which is killed as a whole. Where it takes
long to open a device, the child of a measurement stays, with the device open, for the next ones on it.
When the daemon dies, standard input ends; the worker then kills its children and exits.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.config import load_config
from autotune.devices import for_target
from autotune.errors import (
    AutotuneError,
    BoardProblem,
    Busy,
    ConfigError,
    DiskProblem,
    LockFolderProblem,
    MachineProblem,
    disk_problem,
)
from autotune.machine.hardware import lent_cpus, pin
from autotune.machine.leases import lease
from autotune.processes.children import die_with_parent, fork, refused
from autotune.processes.interrupts import signal_name
from autotune.processes.isolate import KeptChild
from autotune.processes.memory import limit_memory, memory_share
from autotune.processes.message_stream import MessageReader
from autotune.processes.messages import Fatal, KillStage, Ready, RunStage, StageBegan, StageReport, receive, send
from autotune.settings import TARGET_KINDS
from autotune.storage.disk_space import stops_everything
from autotune.storage.formats import KINDS
from autotune.storage.paths import Workspace
from autotune.tvm_backend.load import installation
from autotune.workers.stage_runner import LEASE_WAIT_S

if TYPE_CHECKING:
    from autotune.stages.bench import Bench
    from autotune.stages.stage import Stage

# Threads that a library starts on import would not survive the fork.
SINGLE_THREADED = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
_REASON_LENGTH = 300


@dataclass
class _StageProcess:
    """The child that runs a stage.

    Attributes:
        answers: reads when it began, and then its report.
        requests: the pipe that it takes further stages from; None if it ends with its stage.
        started_at, began_at, deadline: in monotonic seconds; it begins when it holds its leases.
        report: the report that has come, if any.
    """

    stage: RunStage
    pid: int
    answers: MessageReader
    started_at: float
    began_at: float
    deadline: float
    requests: int | None = None
    timed_out: bool = False
    report: StageReport | None = None


@dataclass
class Worker:
    """The loop of one worker process. `commands` and `reports` are its ends of the pipes to the daemon.

    Attributes:
        installed: the files of the TVM that it has loaded.
        known: the keys of the targets that are known to work on this machine.
        stays_open: whether the children of measurements stay, one for each device.
    """

    workspace: Workspace
    commands: MessageReader
    reports: int
    installed: list[tuple[int, int, int]] = field(default_factory=installation)
    known: set[str] = field(default_factory=set)
    stays_open: bool = False
    _children: dict[int, _StageProcess] = field(default_factory=dict)
    _residents: dict[str, _StageProcess] = field(default_factory=dict)  # without a stage, by device
    _leaving: bool = False  # when what runs has ended

    def serve(self) -> None:
        """Serve until standard input ends, then kill what runs."""
        send(self.reports, Ready(os.getpid()))
        while not self.commands.ended and (self._children or not self._leaving):
            self._wait()
            self._kill_overdue()
        for child in (*self._children.values(), *self._residents.values()):
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
        if installation() != self.installed:  # its parts no longer fit together in memory
            self._leaving = True
            reason = "TVM was changed while its worker was running; a new worker is started"
            return send(self.reports, StageReport(stage.id, "unfit", reason=reason))
        try:
            child = self._child_for(stage)
        except MachineProblem as problem:
            return send(self.reports, StageReport(stage.id, "blocked", reason=str(problem)))
        now = time.monotonic()
        child.stage = stage
        child.report = None
        child.started_at = now
        child.began_at = now
        child.deadline = now + stage.limit_s + LEASE_WAIT_S[stage.kind]
        self._children[stage.id] = child

    def _child_for(self, stage: RunStage) -> _StageProcess:
        """Give a stage to the child that stays for its device, or to a new one.

        Raises:
            MachineProblem: the system starts no more processes.
        """
        resident = self._residents.pop(stage.device, None) if stage.device else None
        if resident is not None:
            assert resident.requests is not None
            if stage.kind == "measure":
                with contextlib.suppress(BrokenPipeError):
                    send(resident.requests, stage)
                    return resident
            _reap(resident)
        return self._fork(stage, stays=self.stays_open and stage.kind == "measure")

    def _fork(self, stage: RunStage, *, stays: bool) -> _StageProcess:
        """Fork the child of a stage.

        Raises:
            MachineProblem: the system starts no more processes.
        """
        pipes = list[int]()
        parent = os.getpid()
        try:
            for _ in range(1 + stays):
                pipes += os.pipe()
            pid = fork()
        except (OSError, MachineProblem) as error:
            for descriptor in pipes:
                os.close(descriptor)
            raise refused(error) if isinstance(error, OSError) else error from error
        reader, writer, *requests = pipes
        if not pid:
            _run_child(self.workspace, stage, self.known, writer, parent, *requests[:1])
        os.close(writer)
        if requests:
            os.close(requests[0])
        return _StageProcess(stage, pid, MessageReader(reader), 0.0, 0.0, 0.0, requests[1] if requests else None)

    def _read_answer(self, child: _StageProcess) -> None:
        for message in receive(child.answers):
            if isinstance(message, StageBegan):
                child.began_at = time.monotonic()
                child.deadline = child.began_at + child.stage.limit_s
            if isinstance(message, StageReport):
                child.report = message
                self.known.add(message.tried)
        if child.answers.ended:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, or is about to
            self._finish(child, _reap(child))
        elif child.report is not None and child.requests is not None and not child.timed_out:
            self._residents[child.stage.device] = child
            self._finish(child, 0)

    def _finish(self, child: _StageProcess, status: int) -> None:
        """Report what became of the stage of a child."""
        del self._children[child.stage.id]
        seconds = time.monotonic() - child.began_at
        waited = child.began_at - child.started_at
        send(self.reports, replace(_report(child, status), seconds=round(seconds, 4), waited=round(waited, 4)))

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
        return StageReport(id, "crashed", reason=f"killed by {signal_name(os.WTERMSIG(status))}")
    return child.report or StageReport(id, "crashed", reason=f"ended without a result, status {status}")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _reap(child: _StageProcess) -> int:
    """Kill what is left of a child, and return its status."""
    _kill_group(child.pid)  # before it is reaped: then its number may be another's
    _, status = os.waitpid(child.pid, 0)
    os.close(child.answers.descriptor)
    if child.requests is not None:
        os.close(child.requests)
    return status


def _run_child(
    workspace: Workspace, stage: RunStage, known: set[str], writer: int, parent: int, requests: int = -1
) -> NoReturn:
    """Run a stage in the forked child and send what became of it; then those that are asked for, if it stays."""
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        kept = KeptChild() if requests >= 0 else None
        for request in chain([stage], _later_stages(workspace, requests, kept) if kept else ()):
            before = set(known)
            report = _run(workspace, request, known, partial(send, writer, StageBegan(request.id)), kept)
            send(writer, replace(report, tried="".join(known - before)))
    finally:
        os._exit(0)


def _later_stages(workspace: Workspace, requests: int, kept: KeptChild) -> Iterator[RunStage]:
    """Yield the stages that are asked for. The device is closed when it was not used for a while."""
    reader = MessageReader(requests)
    while not reader.ended:
        kept_s = load_config(workspace.config).measure.kept_open_s
        if not select.select([requests], [], [], kept_s)[0]:
            kept.end()
        yield from (message for message in receive(reader) if isinstance(message, RunStage))


def _run(
    workspace: Workspace, stage: RunStage, known: set[str], began: Callable[[], None], kept: KeptChild | None
) -> StageReport:
    try:
        return StageReport(stage.id, "done", summary=_run_stage(workspace, stage, known, began, kept))
    except Busy as busy:
        return StageReport(stage.id, "busy", reason=str(busy))
    except BoardProblem as problem:
        return StageReport(stage.id, "device-lost", reason=str(problem))
    except MachineProblem as problem:
        return StageReport(stage.id, "unfit", reason=str(problem))
    except (ConfigError, LockFolderProblem) as error:
        return StageReport(stage.id, "blocked", reason=str(error))
    except DiskProblem as problem:
        return _blocked_by_disk(workspace, stage, problem)
    except AutotuneError as error:
        return StageReport(stage.id, "failed", reason=str(error))
    except BaseException as error:
        missing = error.filename if isinstance(error, FileNotFoundError) else None
        if isinstance(missing, str) and Path(missing).is_relative_to(workspace.jobs):  # somebody removed or renamed it
            return StageReport(stage.id, "failed", reason=f"{missing} was removed")
        if isinstance(error, OSError) and error.errno and not isinstance(error, FileNotFoundError):
            return _blocked_by_disk(workspace, stage, disk_problem("use", error.filename or "a file", error))
        with contextlib.suppress(OSError):  # the log may be on the disk that is full
            traceback.print_exc()
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[-1] if lines else ''}"
        return StageReport(stage.id, "failed", reason=reason[:_REASON_LENGTH])


def _blocked_by_disk(workspace: Workspace, stage: RunStage, problem: DiskProblem) -> StageReport:
    """Report a file that cannot be used. It is no fault of the stage, which runs again later."""
    everything = stops_everything(problem, workspace.jobs, workspace.logs)
    return StageReport(stage.id, "blocked" if everything else "unfit", reason=str(problem))


def _run_stage(
    workspace: Workspace, request: RunStage, known: set[str], began: Callable[[], None], kept: KeptChild | None
) -> dict[str, Any]:
    """Run a stage on leased CPUs, pinned to them, with its device leased as well.

    Args:
        known: the keys of the targets that are known to work here; that of the stage is added once it was tried out.
        began: is called when the leases are held.
        kept: has the device open, perhaps, and leaves it so.

    Returns:
        The stage's summary, and its `kind`.

    Raises:
        Busy: a CPU or the device is leased by someone else.
        LockFolderProblem: nothing can be leased.
        MachineProblem: the job was submitted elsewhere, or what is compiled for it cannot be built or run here.
        Exception: whatever the stage raises.
    """
    from autotune.stages.stage import Stage

    config = load_config(workspace.config)
    with lease(config.machine.lock_folder, request.resources, LEASE_WAIT_S[request.kind]):
        began()
        share = memory_share(len(request.cpus), len(lent_cpus(config.machine.cpu_slots)))
        limit_memory(config.machine.memory_limit_mb or share)
        if not config.machine.simulated_cpus:
            pin(request.cpus)
        stage = Stage.load(workspace, config, request, kept)
        _check_fitness(stage, known)
        kind = stage.file.kind
        return dict(import_module(f"autotune.stages.{kind}").run(stage), kind=kind)


def _check_fitness(stage: Stage, known: set[str]) -> None:
    """Ask whether a stage may run here, and try its device out, unless that was done before."""
    stage.bench.check_job()
    if (key := stage.bench.fitness_key) not in known:
        stage.bench.check()
        known.add(key)


def main() -> None:
    parser = argparse.ArgumentParser(prog="autotune.workers.worker")
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--kind", choices=TARGET_KINDS, required=True)
    parser.add_argument("--daemon", type=int, help="the process that started it; it ends with that one")
    options = parser.parse_args()
    die_with_parent(options.daemon)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal signals the daemon too, which decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    os.environ.update(SINGLE_THREADED)
    reports = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get between the reports
    try:
        bench = _load(options.kind, Workspace(options.workspace))
    except AutotuneError as error:
        send(reports, Fatal(str(error)))
        sys.exit(1)
    Worker(Workspace(options.workspace), MessageReader(0), reports, stays_open=bench.stays_open).serve()


def _load(kind: str, workspace: Workspace) -> type[Bench]:
    """Load what stages need, so that the children find it loaded. Returns what they ask of the device.

    Raises:
        UnsupportedVersion: the installed TVM is not one that was tested.
    """
    for name in ("filelock", "msgspec", "tomli", *(f"autotune.stages.{stage}" for stage in KINDS)):
        import_module(name)
    from autotune.stages.benches import BENCHES

    bench = BENCHES[type(for_target({"kind": kind}))]
    bench.load(workspace)
    gc.freeze()  # or each child would look through all of TVM for garbage, and so copy its memory
    return bench


if __name__ == "__main__":
    main()
