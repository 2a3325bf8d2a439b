"""Run work on items in forked processes, so that a crash or a hang costs the item that caused it only.

The child inherits everything loaded (no start-up), works through the items and sends one JSON line for
each. When it dies or an item exceeds its limit, the parent kills what is left of it, reports that item, and forks
again for the rest. The forking process must not have started threads that hold locks.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from autotune.errors import WorkerError

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1
_ENDING_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """What became of an item: `value` where `kind` is `ok`, else a line that says what happened."""

    kind: Literal["ok", "error", "crash", "timeout"]
    value: Any = None
    reason: str = ""


@dataclass
class _Child:
    pid: int
    reader: int
    death: int | None  # a descriptor that is readable once the child is dead, where the system has such
    buffer: bytes = b""

    def line(self, limit_s: float) -> bytes | None:
        """The next line, b"" when the child is dead or closed the stream, None when the limit ran out first."""
        deadline = time.monotonic() + limit_s
        sources = [self.reader] if self.death is None else [self.reader, self.death]
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            ready = select.select(sources, [], [], left)[0] if left > 0 else []
            if not ready:
                return None
            # A process that the child left behind may keep the stream open, so its end is not the only sign.
            chunk = os.read(self.reader, 65536) if self.reader in ready else b""
            if not chunk:
                return b""
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def end(self) -> int:
        """Kill the child and everything in its group; returns the signal that ended it, or 0."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.reader)
        if self.death is not None:
            os.close(self.death)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


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
) -> Iterator[tuple[T, Outcome]]:
    """Yield every item with its outcome, in order.

    Args:
        prepare: runs once in each child and returns the function that works on an item; what that returns
            has to be JSON.
        limit_s: seconds that one item may take.
        prepare_limit_s: seconds that `prepare` may take.

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
            while done < len(items):
                outcome = _outcome(child, limit_s)
                yield items[done], outcome
                done += 1
                if outcome.kind in ("crash", "timeout"):
                    break
        finally:
            child.end()


def _outcome(child: _Child, limit_s: float) -> Outcome:
    line = child.line(limit_s)
    if line is None:
        return Outcome("timeout", reason=f"killed after {limit_s:g} s")
    if line == b"":
        return Outcome("crash", reason=_ending(child.pid))
    return Outcome(**json.loads(line))


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
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writer)
        return _Child(pid, reader, _death(pid))
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        os.close(reader)
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
    except BaseException as error:  # one that is no JSON included
        return _encode(Outcome("error", reason=_line(error)))


def _encode(outcome: Outcome) -> bytes:
    return json.dumps(outcome.__dict__).encode() + b"\n"


def _send(writer: int, data: bytes) -> None:
    while data:
        data = data[os.write(writer, data) :]


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]
