"""Run work on items in forked processes, so that a crash or a hang costs the item that caused it only.

The child inherits everything loaded (no start-up), works through the items and sends one JSON line for
each. When it dies or an item exceeds its limit, the parent kills what is left of it, reports that item, and forks
again for the rest. The forking process must not have started threads that hold locks.

An item may damage the memory of its child and so harm those that follow. Where it matters, one that does badly
is blamed for it only if it does so in a child that no other item has used: see `retried`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from autotune.errors import WorkerError, WrongResult
from autotune.processes.memory import Memory

T = TypeVar("T")
Ending = Literal["ok", "error", "crash", "timeout", "memory", "wrong"]
_PR_SET_PDEATHSIG = 1
_ENDING_S = 5.0
_NOISE_KEPT = 4096
_UNFIT: tuple[Ending, ...] = ("crash", "timeout", "memory", "wrong")  # the child is not used further
_FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
_NO_MEMORY = ("bad_alloc", "out of memory", "Cannot allocate memory")


@dataclass(frozen=True)
class Outcome:
    """What became of an item: `value` where `kind` is `ok`, else a line that says what happened."""

    kind: Ending
    value: Any = None
    reason: str = ""


@dataclass
class _Child:
    pid: int
    reader: int
    errors: int  # its standard error
    death: int | None  # a descriptor that is readable once the child is dead, where the system has such
    memory: Memory
    buffer: bytes = b""
    noise: bytes = b""
    heard_all: bool = False
    ended: bool = False

    def line(self, limit_s: float) -> bytes | None:
        """The next line, b"" when the child is dead or closed the stream, None when the limit ran out first."""
        deadline = time.monotonic() + limit_s
        sources = [self.reader] if self.death is None else [self.reader, self.death]
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            heard = [] if self.heard_all else [self.errors]
            ready = select.select([*sources, *heard], [], [], left)[0] if left > 0 else []
            if not ready:
                return None
            if self.errors in ready:
                self._listen()
            if ready == [self.errors]:
                continue
            # A process that the child left behind may keep the stream open, so its end is not the only sign.
            chunk = os.read(self.reader, 65536) if self.reader in ready else b""
            if not chunk:
                return b""
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _listen(self) -> None:
        """Take in what it says on standard error, or it would block one day; the last of it is kept."""
        chunk = os.read(self.errors, 65536)
        self.heard_all = not chunk
        self.noise = (self.noise + chunk)[-_NOISE_KEPT:]

    def last_words(self) -> str:
        """The end of what it said on standard error."""
        while not self.heard_all and select.select([self.errors], [], [], 0)[0]:
            self._listen()
        return self.noise.decode(errors="replace")

    def end(self) -> int:
        """Kill the child and everything in its group; returns the most memory that it had, in bytes."""
        self.ended = True
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        _, _, usage = os.wait4(self.pid, 0)
        for descriptor in (self.reader, self.errors, self.death):
            if descriptor is not None:
                os.close(descriptor)
        return int(usage.ru_maxrss) * (1024 if sys.platform == "linux" else 1)


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when the one that forked it dies. No effect outside Linux.

    Args:
        parent: that process, where it is known; it may have died already.
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
    retried: Collection[Ending] = (),
) -> Iterator[tuple[T, Outcome]]:
    """Yield every item with its outcome, in order.

    Args:
        prepare: runs once in each child and returns the function that works on an item; what that returns
            has to be JSON.
        limit_s: seconds that one item may take.
        prepare_limit_s: seconds that `prepare` may take.
        retried: outcomes for which an item is worked on once more in a fresh child, unless it was the first in
            its own: one before it may be to blame.

    Raises:
        WorkerError: `prepare` failed, which is no item's fault.
    """
    done = 0
    while done < len(items):
        child = _fork(items[done:], prepare)
        try:
            prepared = _outcome(child, prepare_limit_s)
            if prepared.kind != "ok":
                raise WorkerError(f"cannot start work: {prepared.reason}")
            first = done
            while done < len(items):
                outcome = _outcome(child, limit_s)
                if outcome.kind in _UNFIT:
                    outcome = _end(child, outcome)
                if outcome.kind in retried and done > first:
                    break
                yield items[done], outcome
                done += 1
                if outcome.kind in _UNFIT:
                    break
        finally:
            if not child.ended:
                child.end()


def _outcome(child: _Child, limit_s: float) -> Outcome:
    line = child.line(limit_s)
    if line is None:
        return Outcome("timeout", reason=f"killed after {limit_s:g} s")
    if line == b"":
        return Outcome("crash", reason=_ending(child.pid))
    return Outcome(**json.loads(line))


def _end(child: _Child, outcome: Outcome) -> Outcome:
    """End a child that is not used further; one that died or hung for want of memory is told from others."""
    words = child.last_words()
    peak = child.end()
    if outcome.kind not in ("crash", "timeout"):
        return outcome
    sys.stderr.write(words)
    if child.memory.spent(peak) or any(word in words for word in _NO_MEMORY):
        return Outcome("memory", reason=f"{child.memory.exceeded}; {outcome.reason}")
    said = [line.strip() for line in words.splitlines() if line.strip()]
    return Outcome(outcome.kind, reason=": ".join([outcome.reason, *said[-1:]])[:300])


def _ending(pid: int) -> str:
    """How the child ended, leaving it to be reaped."""
    deadline = time.monotonic() + _ENDING_S
    while (info := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        if time.monotonic() >= deadline:
            return "closed its connection"
        time.sleep(0.01)
    if info.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
        return f"killed by {signal.Signals(info.si_status).name}"
    return f"exited with {info.si_status}"


def _fork(items: Sequence[T], prepare: Callable[[], Callable[[T], Any]]) -> _Child:
    reader, writer = os.pipe()
    listener, errors = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writer)
        os.close(errors)
        return _Child(pid, reader, listener, _death(pid), Memory.here())
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        os.close(reader)
        os.close(listener)
        os.dup2(errors, 2)
        for number in _FATAL_SIGNALS:  # handlers that print a backtrace need memory, and may hang without
            signal.signal(number, signal.SIG_DFL)
        _work(writer, items, prepare)
    finally:
        os._exit(0)


def _death(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old one
        return None


def _work(writer: int, items: Sequence[T], prepare: Callable[[], Callable[[T], Any]]) -> None:
    try:
        function = prepare()
    except BaseException as error:
        return _send(writer, _encode(Outcome("error", reason=_line(error))))
    _send(writer, _encode(Outcome("ok")))
    for item in items:
        _send(writer, _result(function, item))


def _result(function: Callable[[T], Any], item: T) -> bytes:
    try:
        return _encode(Outcome("ok", function(item)))
    except WrongResult as error:
        return _encode(Outcome("wrong", reason=str(error)))
    except BaseException as error:  # one that is no JSON included
        short = isinstance(error, MemoryError) or any(word in str(error) for word in _NO_MEMORY)
        return _encode(Outcome("memory" if short else "error", reason=_line(error)))


def _encode(outcome: Outcome) -> bytes:
    return json.dumps(outcome.__dict__).encode() + b"\n"


def _send(writer: int, data: bytes) -> None:
    while data:
        data = data[os.write(writer, data) :]


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]
