"""Run work on items in forked processes, so that a crash or a hang costs only the item that caused it.

The child inherits everything that is loaded, so it needs no start-up. It works through the items and sends one
message for each. When it dies or an item exceeds its limit, the parent kills the child's process group, reports that
item, and forks again for the rest. The forking process must not have threads that hold locks.

An item may damage the memory of its child and so harm the items after it. With `retried`, an item that fails is
blamed only if it also fails in a child that has worked on no other item.
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
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from autotune.errors import CommandMissing, MachineProblem, ProcessRefused, StageTimeout, WorkerError, WrongResult
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

# What a child says in place of a result where its machine is at fault, and what is raised then.
_MACHINE_PROBLEMS: dict[str, type[MachineProblem]] = {"refused": ProcessRefused, "missing": CommandMissing}
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_EXIT_WAIT_S = 5.0  # for a child that closed its pipe to exit
_STDERR_BYTES_KEPT = 4096
_REASON_LENGTH = 300
_CHUNK_BYTES = 65536
_CHILD_IS_SPENT: tuple[ResultKind, ...] = ("crash", "timeout", "memory", "wrong")  # it works on no further item
_FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
_OUT_OF_MEMORY_WORDS = ("bad_alloc", "out of memory", "Cannot allocate memory")


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


ResultKind = Literal["ok", "error", "crash", "timeout", "memory", "wrong"]


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
class _Child:
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


def isolated(
    items: Sequence[T],
    prepare: Callable[[], Callable[[T], Any]],
    *,
    limit_s: float,
    prepare_limit_s: float = 120.0,
    retried: Collection[ResultKind] = (),
) -> Generator[tuple[T, ItemResult], None, None]:
    """Yield every item with its result, in order.

    Args:
        prepare: Runs once in each child, and returns the function that works on an item. What that function returns
            must be JSON.
        limit_s: Seconds that one item may take.
        prepare_limit_s: Seconds that `prepare` may take.
        retried: Kinds of results that are not taken from a child that has worked on other items before, as those may
            be to blame. The item is then worked on once more in a fresh child.

    Raises:
        WorkerError: `prepare` failed, which is no item's fault.
        ProcessRefused, CommandMissing: The machine cannot work on an item, which is not the item's fault either.
    """
    done = 0
    while done < len(items):
        child = _fork(items[done:], prepare)
        try:
            prepared = child.next_result(prepare_limit_s)
            if prepared.kind != "ok":
                raise WorkerError(f"cannot start work: {prepared.reason}")
            first = done
            while done < len(items):
                result = child.next_result(limit_s)
                if result.kind in _CHILD_IS_SPENT:
                    result = _end(child, result)
                if result.kind in retried and done > first:
                    break
                yield items[done], result
                done += 1
                if result.kind in _CHILD_IS_SPENT:
                    break
        finally:
            if not child.ended:
                child.end()


def isolated_at_once(
    items: Sequence[T], prepare: Callable[[], Callable[[T], Any]], children: int, *, limit_s: float
) -> Generator[tuple[T, ItemResult], None, None]:
    """Yield every item with its result, from so many children that work at the same time.

    Args and Raises are those of `isolated`.
    """

    def work() -> Callable[[T | None], Any]:
        function = prepare()
        return lambda item: None if item is None else function(item)

    with contextlib.ExitStack() as stack:
        working = []
        for number in range(min(children, len(items))):
            share: list[T | None] = [None, *items[number::children]]
            child = stack.enter_context(contextlib.closing(isolated(share, work, limit_s=limit_s)))
            next(child)  # of no item: now it works on the others
            working.append(child)
        for child in working:
            for item, result in child:
                assert item is not None
                yield item, result


def _end(child: _Child, result: ItemResult) -> ItemResult:
    """End a child that works on nothing more, and find out whether it crashed or hung for want of memory."""
    stderr = child.stderr_tail()
    peak = child.end()
    if result.kind not in ("crash", "timeout"):
        return result
    sys.stderr.write(stderr)
    if child.memory.spent(peak) or any(word in stderr for word in _OUT_OF_MEMORY_WORDS):
        return ItemResult("memory", reason=f"{child.memory.exceeded}; {result.reason}")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return ItemResult(result.kind, reason=": ".join([result.reason, *lines[-1:]])[:_REASON_LENGTH])


def _fork(items: Sequence[T], prepare: Callable[[], Callable[[T], Any]]) -> _Child:
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
        return _Child(pid, MessageReader(results), stderr, _pidfd(pid), ProcessMemory.here())
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        os.close(results)
        os.close(stderr)
        os.dup2(stderr_writer, 2)
        for number in _FATAL_SIGNALS:  # handlers that print a backtrace need memory, and may hang without
            signal.signal(number, signal.SIG_DFL)
        _work(results_writer, items, prepare)
    finally:
        os._exit(0)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old kernel
        return None


def _work(writer: int, items: Sequence[T], prepare: Callable[[], Callable[[T], Any]]) -> None:
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
        out_of_memory = isinstance(error, MemoryError) or any(word in str(error) for word in _OUT_OF_MEMORY_WORDS)
        return _encode("memory" if out_of_memory else "error", reason=_last_line(error))


def _encode(kind: str, value: Any = None, reason: str = "") -> bytes:
    return encode({"kind": kind, "value": value, "reason": reason})


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:_REASON_LENGTH]
