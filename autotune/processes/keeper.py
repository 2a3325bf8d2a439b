"""Run commands of users, within limits, so that nothing of them is left behind.

A `Keeper` is a forked process that starts the commands one by one. It adopts what they leave behind, even in a session
of its own, and kills that as soon as a command ends, takes too long, or the process that forked the keeper dies. So a
command never runs on beside the next measurement.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import psutil

from autotune.errors import WorkerCrashed
from autotune.processes.children import die_with_parent, fork, is_refusal, refused
from autotune.processes.interrupts import signal_name
from autotune.processes.message_stream import MessageReader, encode
from autotune.storage.atomic import write_all

_PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl
_STDERR_BYTES = 4096
_MAX_DESCRIPTORS = 1 << 16
_CHUNK_BYTES = 65536
_MOMENT = struct.Struct("d")
_DRAIN_S = 0.2  # for output that is on its way when a command has ended


@dataclass(frozen=True)
class CommandLimits:
    """What a command may use.

    Attributes:
        timeout_s: The seconds after which it is killed.
        file_bytes: The size of the largest file that it may write.
        output_bytes: How much of the end of its output is kept.
        cpus: The CPUs that it runs on; all of this process if there are none.
    """

    timeout_s: float
    file_bytes: int
    output_bytes: int
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Finished:
    """What became of a command.

    Attributes:
        how: `exited`, by itself; `timeout`; `missing`: there is no such program, or it cannot be run.
        status: The exit status; that of a signal is its number, and negative.
        seconds: How long it ran, from when its program was loaded.
        output: The end of its standard output.
        errors: The end of its standard error, or why it is missing.
        truncated: Whether it printed more than was kept.
    """

    how: Literal["exited", "timeout", "missing"]
    status: int = 0
    seconds: float = 0.0
    output: str = ""
    errors: str = ""
    truncated: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.how == "exited" and self.status == 0

    @property
    def fault(self) -> str:
        """What went wrong, in words; empty if nothing did."""
        if self.succeeded:
            return ""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        if self.how == "exited":
            how = f"was killed by {signal_name(-self.status)}" if self.status < 0 else f"exited with {self.status}"
        else:
            how = f"was killed after {self.seconds:.3g} s" if self.how == "timeout" else "cannot be run"
        return ": ".join([how, *lines[-1:]])


class Keeper:
    """Runs commands for this process, until `close` or the end of this process."""

    def __init__(self) -> None:
        try:
            read_requests, requests = os.pipe()
            answers, write_answers = os.pipe()
        except OSError as error:
            raise refused(error) from error
        self._pid = fork()
        if not self._pid:
            os.close(requests)
            os.close(answers)
            _serve(read_requests, write_answers)
        os.close(read_requests)
        os.close(write_answers)
        self._requests = requests
        self._answers = MessageReader(answers)

    def run(
        self, command: Sequence[str], folder: str, environment: Mapping[str, str], limits: CommandLimits
    ) -> Finished:
        """Run a command to its end.

        Args:
            command: The program and its arguments.
            folder: Where it runs.
            environment: All of its variables.
            limits: What it may use.

        Raises:
            WorkerCrashed: The keeper died.
            ProcessRefused: The system starts no more processes.
        """
        request = {"command": list(command), "folder": folder, "environment": dict(environment), **vars(limits)}
        with contextlib.suppress(BrokenPipeError):
            write_all(self._requests, encode(request))
        answer = next(iter(self._answers), None)
        if answer is None:
            raise WorkerCrashed("the process that runs commands died")
        if "refused" in answer:
            raise refused(OSError(answer["refused"], os.strerror(answer["refused"])))
        return Finished(**answer)

    def close(self) -> None:
        """Kill what runs, and end."""
        for descriptor in (self._requests, self._answers.descriptor):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _serve(requests: int, answers: int) -> NoReturn:
    """Be the keeper: in a session of its own, so that a signal to its maker's group does not end it first."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, min(requests, answers))
        os.closerange(min(requests, answers) + 1, max(requests, answers))
        os.closerange(max(requests, answers) + 1, _MAX_DESCRIPTORS)
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        reader = MessageReader(requests)
        for request in reader:
            answer = _answer(request, requests)
            _kill_all()
            if answer is None:
                break
            write_all(answers, encode(answer))
    finally:
        _kill_all()
        os._exit(0)


def _answer(request: Mapping[str, Any], requests: int) -> dict[str, Any] | None:
    """Run a command; return None if the maker of the keeper has died meanwhile."""
    limits = CommandLimits(**{name: request[name] for name in CommandLimits.__dataclass_fields__})
    started, write_started = os.pipe()
    try:
        process = subprocess.Popen(
            request["command"],
            cwd=request["folder"],
            env=request["environment"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_prepare(limits, write_started),
            start_new_session=True,
        )
    except OSError as error:
        os.close(started)
        if is_refusal(error):
            return {"refused": error.errno}
        return vars(Finished("missing", errors=error.strerror or str(error)))
    except subprocess.SubprocessError as error:
        os.close(started)
        return vars(Finished("missing", errors=str(error)))
    finally:
        os.close(write_started)
    began = _MOMENT.unpack(os.read(started, _MOMENT.size))[0]
    os.close(started)
    return _Running(process, limits, began, requests).watch()


def _prepare(limits: CommandLimits, started: int) -> Callable[[], None]:
    """Return what the child does before it becomes the command; the moment is the last thing that it does."""
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent(parent)
        if limits.cpus:
            os.sched_setaffinity(0, limits.cpus)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        most = limits.file_bytes if hard == resource.RLIM_INFINITY else min(limits.file_bytes, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.write(started, _MOMENT.pack(time.monotonic()))

    return prepare


@dataclass
class _Running:
    """A command that runs."""

    process: subprocess.Popen[bytes]
    limits: CommandLimits
    began: float
    requests: int

    def __post_init__(self) -> None:
        assert self.process.stdout is not None and self.process.stderr is not None
        self._streams = {self.process.stdout.fileno(): b"", self.process.stderr.fileno(): b""}
        self._out = self.process.stdout.fileno()
        self._open = set(self._streams)
        self._printed = 0

    def watch(self) -> dict[str, Any] | None:
        """Wait for its end, or kill it; return what became of it."""
        pidfd = os.pidfd_open(self.process.pid)
        try:
            ended = self._wait(pidfd)
        finally:
            os.close(pidfd)
        seconds = time.monotonic() - self.began
        if ended is None:
            return None
        if ended:
            self._drain()
        else:
            self.process.kill()
        status = self.process.wait()
        return vars(self._finished("exited" if ended else "timeout", status, seconds))

    def _wait(self, pidfd: int) -> bool | None:
        """Return whether it ended by itself in time; None if the maker of the keeper has died."""
        deadline = self.began + self.limits.timeout_s
        while True:
            left_s = deadline - time.monotonic()
            watched = [pidfd, self.requests, *self._open]
            ready = select.select(watched, [], [], left_s)[0] if left_s > 0 else []
            if self.requests in ready:  # nothing is asked meanwhile, so this is the end of the pipe
                return None
            if not ready:
                return False
            if pidfd in ready:
                return True
            for stream in ready:
                self._read(stream)

    def _read(self, stream: int) -> None:
        chunk = os.read(stream, _CHUNK_BYTES)
        if not chunk:
            self._open.discard(stream)
        most = self.limits.output_bytes if stream == self._out else _STDERR_BYTES
        self._streams[stream] = (self._streams[stream] + chunk)[-most:]
        self._printed += len(chunk) if stream == self._out else 0

    def _drain(self) -> None:
        """Read what it has printed. What it left behind may keep the streams open."""
        deadline = time.monotonic() + _DRAIN_S
        while self._open and time.monotonic() < deadline:
            ready = select.select(list(self._open), [], [], 0)[0]
            if not ready:
                return
            for stream in ready:
                self._read(stream)

    def _finished(self, how: Literal["exited", "timeout"], status: int, seconds: float) -> Finished:
        assert self.process.stdout is not None and self.process.stderr is not None
        output, errors = (text.decode(errors="replace") for text in self._streams.values())
        self.process.stdout.close()
        self.process.stderr.close()
        return Finished(how, status, seconds, output, errors, self._printed > self.limits.output_bytes)


def _kill_all() -> None:
    """Kill all descendants of this process, and wait for them."""
    while _has_children():
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
