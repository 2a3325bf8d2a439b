"""A child process that works on items, seen from its parent and from within; and what is said where there is none.

The child sends one message for each item. Whatever ends it, the parent finds out how.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from autotune.errors import CommandMissing, MachineProblem, ProcessRefused, StageTimeout, WrongResult
from autotune.processes.interrupts import signal_name
from autotune.processes.memory import ProcessMemory
from autotune.processes.message_stream import MessageReader, encode
from autotune.storage.atomic import write_all

_ADVICE = {
    errno.EMFILE: "raise the open file limit (ulimit -n)",
    errno.ENFILE: "end programs that keep many files open",
    errno.ENOMEM: "end programs that need much memory",
}
# The program is not there, or is none for this user.
_NO_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP)
_REFUSALS = (errno.EAGAIN, *_ADVICE)
T = TypeVar("T")
ResultKind = Literal["ok", "error", "crash", "timeout", "memory", "wrong"]
# What a child says in place of a result where its machine is at fault, and what is raised then.
_MACHINE_PROBLEMS: dict[str, type[MachineProblem]] = {"refused": ProcessRefused, "missing": CommandMissing}
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_EXIT_WAIT_S = 5.0  # for a child that closed its pipe to exit
_STDERR_BYTES_KEPT = 4096
REASON_LENGTH = 300
_CHUNK_BYTES = 65536
_FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
OUT_OF_MEMORY_WORDS = ("bad_alloc", "out of memory", "Cannot allocate memory")


def fork() -> int:
    """Fork this process, as `os.fork` does.

    Raises:
        ProcessRefused: The system refuses.
    """
    try:
        return os.fork()
    except OSError as error:
        raise refused(error) from error


def is_refusal(error: OSError) -> bool:
    """Return whether the system had no process, no memory or no file left, so that it is not the program's fault."""
    return error.errno in _REFUSALS


def refused(error: OSError) -> ProcessRefused:
    """Return the error to raise where no process, or no pipe to it, can be had."""
    reason = error.strerror or str(error)
    because = f"({reason[:1].lower()}{reason[1:]})"
    if error.errno in _NO_PROGRAM and error.filename:
        return ProcessRefused(
            f"{error.filename} cannot be started {because}: its environment was moved or removed, or is another user's;"
            " run autotune of one that is there"
        )
    advice = _ADVICE.get(error.errno or 0, "end some, or raise their limit (ulimit -u)")
    return ProcessRefused(f"this machine starts no more processes {because}; {advice}")


@dataclass(frozen=True)
class ItemResult:
    """What became of an item.

    Attributes:
        kind: `ok`; `error`: it raised; `crash`: its process died; `timeout`; `memory`: it needs more than it may
            have; `wrong`: it raised `WrongResult`.
        value: What the function returned, as JSON gives it back, where `kind` is `ok`.
        reason: One line that says what happened, where it is not.
    """

    kind: ResultKind
    value: Any = None
    reason: str = ""


@dataclass
class Child:
    """A forked child, seen from its parent.

    Attributes:
        results: Reads what it sends.
        stderr: The reading end of its standard error.
        pidfd: A descriptor that is readable once the child is dead; None where the system has none.
        memory: The limit under which it was forked.
    """

    pid: int
    results: MessageReader
    stderr: int
    pidfd: int | None
    memory: ProcessMemory
    ended: bool = False
    _received: deque[dict[str, Any]] = field(default_factory=deque)
    _stderr_tail: bytes = b""
    _stderr_closed: bool = False

    def next_result(self, limit_s: float) -> ItemResult:
        """Wait for the next result; a child that sends none in time, or died, is the result.

        Raises:
            ProcessRefused: An item needed another process, and there was none to be had.
            CommandMissing: An item needed a program that is not here.
        """
        deadline = time.monotonic() + limit_s
        sources = [self.results.descriptor, *([] if self.pidfd is None else [self.pidfd])]
        while not self._received:
            left_s = deadline - time.monotonic()
            watched = sources if self._stderr_closed else [*sources, self.stderr]
            ready = select.select(watched, [], [], left_s)[0] if left_s > 0 else []
            if not ready:
                return ItemResult("timeout", reason=f"killed after {limit_s:g} s")
            if self.stderr in ready:
                self._read_stderr()
            if self.results.descriptor in ready:
                self._received += self.results.receive()
            # A process that the child left behind may keep the stream open: its end is not the only sign of death.
            if self.results.ended or (self.pidfd in ready and self.results.descriptor not in ready):
                break
        if not self._received:
            return ItemResult("crash", reason=self._death())
        message = self._received.popleft()
        if (problem := _MACHINE_PROBLEMS.get(message["kind"])) is not None:
            raise problem(message["reason"])
        return ItemResult(**message)

    def _read_stderr(self) -> None:
        """Take in standard error, or the child would block when the pipe is full. Its end is kept."""
        chunk = os.read(self.stderr, _CHUNK_BYTES)
        self._stderr_closed = not chunk
        self._stderr_tail = (self._stderr_tail + chunk)[-_STDERR_BYTES_KEPT:]

    def stderr_tail(self) -> str:
        """The end of what it wrote to standard error."""
        while not self._stderr_closed and select.select([self.stderr], [], [], 0)[0]:
            self._read_stderr()
        return self._stderr_tail.decode(errors="replace")

    def _death(self) -> str:
        """How it ended. It is left to be reaped."""
        deadline = time.monotonic() + _EXIT_WAIT_S
        while (info := os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
            if time.monotonic() >= deadline:
                return "closed its connection"
            time.sleep(0.01)
        if info.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
            return f"killed by {signal_name(info.si_status)}"
        return f"exited with {info.si_status}"

    def end(self) -> int:
        """Kill the child and everything in its process group.

        Returns:
            The largest resident memory that it had, in bytes.
        """
        self.ended = True
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        _, _, usage = os.wait4(self.pid, 0)
        for descriptor in (self.results.descriptor, self.stderr, self.pidfd):
            if descriptor is not None:
                os.close(descriptor)
        return int(usage.ru_maxrss) * (1024 if sys.platform == "linux" else 1)


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when the one that forked it dies. No effect outside Linux.

    Args:
        parent: That process, where it is known; it may have died already.
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def forked(work: Callable[[int], None], *unwanted: int) -> Child:
    """Fork a child that does some work, for which it is given the pipe to send results to, and exits.

    Args:
        unwanted: Descriptors that it closes first.
    """
    try:
        results, results_writer = os.pipe()
        stderr, stderr_writer = os.pipe()
    except OSError as error:
        raise refused(error) from error
    parent = os.getpid()
    pid = fork()
    if pid:
        os.close(results_writer)
        os.close(stderr_writer)
        return Child(pid, MessageReader(results), stderr, _pidfd(pid), ProcessMemory.here())
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        for descriptor in (results, stderr, *unwanted):
            os.close(descriptor)
        os.dup2(stderr_writer, 2)
        for number in _FATAL_SIGNALS:  # handlers that print a backtrace need memory, and may hang without
            signal.signal(number, signal.SIG_DFL)
        work(results_writer)
    finally:
        os._exit(0)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old kernel
        return None


def work_on(writer: int, items: Sequence[T], prepare: Callable[[], Callable[[T], Any]]) -> None:
    try:
        function = prepare()
    except BaseException as error:
        return write_all(writer, _encode("error", reason=_last_line(error)))
    write_all(writer, _encode("ok"))
    for item in items:
        write_all(writer, _result(function, item))


def _result(function: Callable[[T], Any], item: T) -> bytes:
    try:
        return _encode("ok", function(item))
    except WrongResult as error:
        return _encode("wrong", reason=str(error))
    except (ProcessRefused, CommandMissing) as error:
        kinds = {problem: kind for kind, problem in _MACHINE_PROBLEMS.items()}
        return _encode(kinds[type(error)], reason=str(error))
    except StageTimeout as error:
        return _encode("timeout", reason=str(error))
    except BaseException as error:  # also where the value is not JSON
        out_of_memory = isinstance(error, MemoryError) or any(word in str(error) for word in OUT_OF_MEMORY_WORDS)
        return _encode("memory" if out_of_memory else "error", reason=_last_line(error))


def _encode(kind: str, value: Any = None, reason: str = "") -> bytes:
    return encode({"kind": kind, "value": value, "reason": reason})


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:REASON_LENGTH]
